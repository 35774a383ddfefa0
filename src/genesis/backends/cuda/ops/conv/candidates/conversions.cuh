// Pairs of 16-bit numbers in a word, the first in the low half, to and from float32. KIND: "f16" | "bf16".
#pragma once

typedef unsigned int u32;
typedef unsigned short u16;

template <bool BF16>
__device__ __forceinline__ float half_of(u32 word, bool high) {
  if constexpr (BF16) {
    return __uint_as_float(high ? word & 0xFFFF0000u : word << 16);
  } else {
    float r;
    const u16 bits = high ? (u16)(word >> 16) : (u16)word;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(bits));
    return r;
  }
}

template <bool BF16>
__device__ __forceinline__ u32 rounded_pair(float low, float high) {
  u32 r;
  if constexpr (BF16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  }
  return r;
}
