// Float32 as the sum of two float16 parts with a power-of-two scale, in the registers that wgmma takes rows from.
//
// Macro PRODUCTS: 3, or 1 where 11 bits are enough: then there is the high part only.
#pragma once

typedef unsigned int u32;

#define FULL_WARP 0xFFFFFFFFu
__device__ __forceinline__ u32 pack(float low, float high) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

__device__ __forceinline__ void unpack(u32 v, float& low, float& high) {
  asm("{\n.reg .b16 a, b;\nmov.b32 {a, b}, %2;\ncvt.f32.f16 %0, a;\ncvt.f32.f16 %1, b;\n}\n" : "=f"(low), "=f"(high)
      : "r"(v));
}
// 2 ** e, e up to 127; 0 below -149
__device__ __forceinline__ float power_of_2(int e) {
  u32 denormal;
  asm("shl.b32 %0, 1, %1;" : "=r"(denormal) : "r"(e + 149));  // which shifts out where C++ leaves it undefined
  return __int_as_float(e >= -126 ? (e + 127) << 23 : denormal);
}
__device__ __forceinline__ float sign(float v) { return v > 0.f ? 1.f : v < 0.f ? -1.f : 0.f; }
__device__ __forceinline__ bool is_finite(float v) { return fabsf(v) < __int_as_float(0x7F800000); }

__device__ __forceinline__ float largest_of_warp(float v) {  // of numbers that are not negative
  return __uint_as_float(__reduce_max_sync(FULL_WARP, __float_as_uint(v)));
}

__device__ __forceinline__ float larger_or_nan(float x, float y) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y));
  return r;
}

// Infinities and NaN, which scales leave out, stand in low, with +-1 or 0 in high.
__device__ __forceinline__ void set_infinities(u32& high, u32& low, float x, float y) {
  float h0, h1, l0, l1;
  unpack(high, h0, h1);
  unpack(low, l0, l1);
  high = pack(is_finite(x) ? h0 : sign(x), is_finite(y) ? h1 : sign(y));
  low = pack(is_finite(x) ? l0 : x, is_finite(y) ? l1 : y);
}

// 64 terms of two rows: v[2 * j + row], j-th group of 16; to the parts that the products take, times 2^exponent of a
// row.
struct Fragments {
  u32 high[4][4];
#if PRODUCTS == 3
  u32 low[4][4];
#endif
  int exponent[2];

  __device__ __forceinline__ void set(int j, int r, float x0, float x1, float x2, float x3) {
    high[j][r] = pack(x0, x1);
    high[j][r + 2] = pack(x2, x3);
#if PRODUCTS == 3
    float h0, h1;
    unpack(high[j][r], h0, h1);
    low[j][r] = pack(x0 - h0, x1 - h1);
    unpack(high[j][r + 2], h0, h1);
    low[j][r + 2] = pack(x2 - h0, x3 - h1);
#endif
  }

  __device__ __forceinline__ void split(const float4 (&v)[8]) {
    float most[2] = {0.f, 0.f};
#pragma unroll
    for (int i = 0; i < 8; ++i)
      most[i & 1] = fmaxf(most[i & 1], fmaxf(fmaxf(fabsf(v[i].x), fabsf(v[i].y)), fmaxf(fabsf(v[i].z), fabsf(v[i].w))));
    bool rare = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      most[r] = fmaxf(most[r], __shfl_xor_sync(FULL_WARP, most[r], 1));
      most[r] = fmaxf(most[r], __shfl_xor_sync(FULL_WARP, most[r], 2));
      rare |= !is_finite(most[r]) || (most[r] > 0.f && most[r] < 1e-30f);
    }
    if (__any_sync(FULL_WARP, rare)) return split_rare(v);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      exponent[r] = most[r] > 0.f ? 14 + 127 - (int)(__float_as_uint(most[r]) >> 23) : 0;
      const float scale = power_of_2(exponent[r]);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float4 x = v[2 * j + r];
        set(j, r, x.x * scale, x.y * scale, x.z * scale, x.w * scale);
      }
    }
  }

  // Rows with infinities, which the scale leaves out, or with nothing but numbers so small that it is no float32.
  __device__ __forceinline__ void split_rare(const float4 (&v)[8]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most = 0.f;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float x[4] = {v[2 * j + r].x, v[2 * j + r].y, v[2 * j + r].z, v[2 * j + r].w};
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (is_finite(x[i])) most = fmaxf(most, fabsf(x[i]));
      }
      most = fmaxf(most, __shfl_xor_sync(FULL_WARP, most, 1));
      most = fmaxf(most, __shfl_xor_sync(FULL_WARP, most, 2));
      exponent[r] = most > 0.f ? min(14 + 127 - (int)(__float_as_uint(most) >> 23), 134) : 0;
      const float half = power_of_2(exponent[r] / 2), rest = power_of_2(exponent[r] - exponent[r] / 2);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float x[4] = {v[2 * j + r].x, v[2 * j + r].y, v[2 * j + r].z, v[2 * j + r].w};
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = x[i] * half * rest;
        set(j, r, x[0], x[1], x[2], x[3]);
#if PRODUCTS == 3
        set_infinities(high[j][r], low[j][r], x[0], x[1]);
        set_infinities(high[j][r + 2], low[j][r + 2], x[2], x[3]);
#endif
      }
    }
  }
};

// Two numbers of a tile whose scale is known.
__device__ __forceinline__ void split_pair(float x, float y, float scale, u32& high, u32& low) {
  float h0, h1;
  x *= scale;
  y *= scale;
  high = pack(x, y);
  unpack(high, h0, h1);
  low = pack(x - h0, y - h1);
}

// Sums of two rows are kept larger than they are, so that those of denormal numbers keep their digits too; until terms
// come with which they might overflow though the result does not: from then on they are 2^-LOWERED as large.
#define LOWERED 64
#define HIGHEST 70  // a chain is less than 2^36, and of at most 2^21 there is one sum

struct Range {
  int lowered[2] = {0, 0};

  // What a chain is multiplied with before it is added to sum: 2^exponent, per row.
  template <int N>
  __device__ __forceinline__ void factors(int first, int second, float (&sum)[N], float (&factor)[2]) {
    int exponent[2] = {first - lowered[0], second - lowered[1]};
    if (__any_sync(FULL_WARP, max(exponent[0], exponent[1]) > HIGHEST)) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const bool now = exponent[r] > HIGHEST && lowered[r] == 0;
        const float less = now ? power_of_2(-LOWERED) : 1.f;
#pragma unroll
        for (int i = 0; i < N; ++i)
          if (i / 2 % 2 == r) sum[i] *= less;
        lowered[r] += now ? LOWERED : 0;
        exponent[r] = min(exponent[r] - (now ? LOWERED : 0), 127);
      }
    }
    factor[0] = power_of_2(exponent[0]);
    factor[1] = power_of_2(exponent[1]);
  }
};
