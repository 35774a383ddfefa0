// Float32 as the sum of two float16 parts with a power-of-two scale, in the registers that wgmma takes rows from.
#pragma once

typedef unsigned int u32;

#define FULL_WARP 0xFFFFFFFFu
// Weights come scaled to about 2^15 (kernels/conv_split.py); sums are kept 2^8 times as large as those of weights of
// about 1, so that sums of denormal numbers keep their digits with weights up to 2^8, and large numbers do not
// overflow.
#define SHIFT 7

__device__ __forceinline__ u32 pack(float low, float high) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

__device__ __forceinline__ void unpack(u32 v, float& low, float& high) {
  asm("{\n.reg .b16 a, b;\nmov.b32 {a, b}, %2;\ncvt.f32.f16 %0, a;\ncvt.f32.f16 %1, b;\n}\n" : "=f"(low), "=f"(high)
      : "r"(v));
}
// 2 ** e, e from -149 on
__device__ __forceinline__ float power_of_2(int e) {
  return __int_as_float(e >= -126 ? (e + 127) << 23 : 1 << (e + 149));
}
__device__ __forceinline__ float sign(float v) { return v > 0.f ? 1.f : v < 0.f ? -1.f : 0.f; }
__device__ __forceinline__ bool is_finite(float v) { return fabsf(v) < __int_as_float(0x7F800000); }

// 64 terms of two rows: v[2 * j + row], j-th group of 16; to the parts that the products take, and 2^-SHIFT / scale per
// row.
struct Fragments {
  u32 high[4][4], low[4][4];
  float inverse[2];

  __device__ __forceinline__ void set(int j, int r, float x0, float x1, float x2, float x3) {
    float h0, h1;
    high[j][r] = pack(x0, x1);
    unpack(high[j][r], h0, h1);
    low[j][r] = pack(x0 - h0, x1 - h1);
    high[j][r + 2] = pack(x2, x3);
    unpack(high[j][r + 2], h0, h1);
    low[j][r + 2] = pack(x2 - h0, x3 - h1);
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
      const int exponent = most[r] > 0.f ? 14 + 127 - (int)(__float_as_uint(most[r]) >> 23) : 0;
      const float scale = power_of_2(exponent);
      inverse[r] = power_of_2(-SHIFT - exponent);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float4 x = v[2 * j + r];
        set(j, r, x.x * scale, x.y * scale, x.z * scale, x.w * scale);
      }
    }
  }

  // Rows with infinities, which the scale leaves out and which stand in low with +-1 in high, or with nothing but
  // numbers so small that their scale is no float32.
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
      const int exponent = most > 0.f ? min(14 + 127 - (int)(__float_as_uint(most) >> 23), 134) : 0;
      const float half = power_of_2(exponent / 2), rest = power_of_2(exponent - exponent / 2);
      inverse[r] = power_of_2(-SHIFT - exponent);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float x[4] = {v[2 * j + r].x, v[2 * j + r].y, v[2 * j + r].z, v[2 * j + r].w};
        float high_part[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (is_finite(x[i])) {
            x[i] = x[i] * half * rest;
            float unused;
            unpack(pack(x[i], 0.f), high_part[i], unused);
            x[i] -= high_part[i];
          } else {
            high_part[i] = sign(x[i]);
          }
        }
        high[j][r] = pack(high_part[0], high_part[1]);
        high[j][r + 2] = pack(high_part[2], high_part[3]);
        low[j][r] = pack(x[0], x[1]);
        low[j][r + 2] = pack(x[2], x[3]);
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

// The same where there may be infinities, which the scale leaves out: they stand in low, with +-1 in high.
__device__ __forceinline__ void split_rare_pair(float x, float y, float scale, u32& high, u32& low) {
  float h0, h1;
  split_pair(is_finite(x) ? x : 0.f, is_finite(y) ? y : 0.f, scale, high, low);
  unpack(high, h0, h1);
  high = pack(is_finite(x) ? h0 : sign(x), is_finite(y) ? h1 : sign(y));
  unpack(low, h0, h1);
  low = pack(is_finite(x) ? h0 : x, is_finite(y) ? h1 : y);
}
