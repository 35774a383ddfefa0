// Vectors of channels in memory and registers.
//
// Macros: DTYPE 0 float32 | 1 float16 | 2 bfloat16.
#pragma once
#include "conversions.cuh"

#define ELEMENT (DTYPE == 0 ? 4 : 2)  // bytes

// The largest power of two that divides n, at most `most`.
__device__ constexpr int power_in(int n, int most) {
  int power = 1;
  while (power < most && n % (2 * power) == 0) power *= 2;
  return power;
}

template <int BYTES>
struct Chunk;
template <>
struct Chunk<2> { using type = u16; };
template <>
struct Chunk<4> { using type = u32; };
template <>
struct Chunk<8> { using type = uint2; };
template <>
struct Chunk<16> { using type = uint4; };

// N neighbouring channels of a pixel as they are in memory. Loads and stores are as wide as N allows, 16 bytes at most:
// addresses are multiples of that.
template <int N>
struct Channels {
  static constexpr int BYTES = N * ELEMENT, WIDTH = power_in(BYTES, 16), WORDS = (BYTES + 3) / 4;
  using Access = typename Chunk<WIDTH>::type;
  u32 words[WORDS];

  __device__ __forceinline__ void load(const char* __restrict__ from, bool inside) {
#pragma unroll
    for (int i = 0; i < WORDS; ++i) words[i] = 0;
    if (!inside) return;
    const Access* source = reinterpret_cast<const Access*>(from);
#pragma unroll
    for (int i = 0; i < BYTES / WIDTH; ++i) {
      const Access found = __ldg(source + i);
      if constexpr (WIDTH == 2) {
        words[i / 2] |= (u32)found << 16 * (i % 2);
      } else if constexpr (WIDTH == 4) {
        words[i] = found;
      } else if constexpr (WIDTH == 8) {
        words[2 * i] = found.x, words[2 * i + 1] = found.y;
      } else {
        words[4 * i] = found.x, words[4 * i + 1] = found.y, words[4 * i + 2] = found.z, words[4 * i + 3] = found.w;
      }
    }
  }

  __device__ __forceinline__ void store(char* to) const {
    Access* target = reinterpret_cast<Access*>(to);
#pragma unroll
    for (int i = 0; i < BYTES / WIDTH; ++i) {
      if constexpr (WIDTH == 2) {
        target[i] = (u16)(words[i / 2] >> 16 * (i % 2));
      } else if constexpr (WIDTH == 4) {
        target[i] = words[i];
      } else if constexpr (WIDTH == 8) {
        target[i] = make_uint2(words[2 * i], words[2 * i + 1]);
      } else {
        target[i] = make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
      }
    }
  }

  __device__ __forceinline__ float operator[](int i) const {
#if DTYPE == 0
    return __uint_as_float(words[i]);
#else
    return half_of<DTYPE == 2>(words[i / 2], i % 2);
#endif
  }

  __device__ __forceinline__ void round(const float (&values)[N]) {
#pragma unroll
    for (int i = 0; i < WORDS; ++i) {
#if DTYPE == 0
      words[i] = __float_as_uint(values[i]);
#else
      words[i] = rounded_pair<DTYPE == 2>(values[2 * i], 2 * i + 1 < N ? values[2 * i + 1] : 0.f);
#endif
    }
  }
};

__device__ __forceinline__ float value_at(const char* array, long long index) {
  Channels<1> one;
  one.load(array + index * ELEMENT, true);
  return one[0];
}
