// Shared by the depthwise kernels: vectors of floats in shared memory, and where results meet taps.
#pragma once
#include "../overlap.cuh"
#include "../channels.cuh"

// N floats of shared memory, at a multiple of as many bytes as N allows.
template <int N>
__device__ __forceinline__ void read_shared(float (&values)[N], const float* from) {
  constexpr int WIDTH = power_in(N, 4);
#pragma unroll
  for (int i = 0; i < N; i += WIDTH) {
    if constexpr (WIDTH == 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + i);
      values[i] = four.x, values[i + 1] = four.y, values[i + 2] = four.z, values[i + 3] = four.w;
    } else if constexpr (WIDTH == 2) {
      const float2 two = *reinterpret_cast<const float2*>(from + i);
      values[i] = two.x, values[i + 1] = two.y;
    } else {
      values[i] = from[i];
    }
  }
}

__device__ constexpr int floor_div(int a, int b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

// Along one axis: result i of a tile meets tap t, or not, at a place of what is summed, counted from begin().
//
// TRANSPOSED: the sum of an input's gradient. Result h meets tap t if h + PADDING - t * DILATION is a multiple of the
// stride; tiles begin at such, so that it is known when the kernel is compiled.
template <int TILE, int TAPS, int STRIDE, int DILATION, int PADDING, bool TRANSPOSED>
struct Axis {
  static constexpr int LOW = TRANSPOSED ? floor_div(PADDING - (TAPS - 1) * DILATION, STRIDE) : -PADDING;
  static constexpr int SPAN = TRANSPOSED ? (TILE - 1 + PADDING - LOW * STRIDE) / STRIDE + 1
                                         : (TILE - 1) * STRIDE + (TAPS - 1) * DILATION + 1;

  static __device__ constexpr int begin(int first) {
    return TRANSPOSED ? first / STRIDE + LOW : first * STRIDE + LOW;
  }
  static __device__ constexpr bool meets(int i, int t) {
    return !TRANSPOSED || (i + PADDING - t * DILATION - LOW * STRIDE) % STRIDE == 0;
  }
  static __device__ constexpr int place(int i, int t) {
    return TRANSPOSED ? (i + PADDING - t * DILATION - LOW * STRIDE) / STRIDE : i * STRIDE + t * DILATION;
  }
  static __device__ constexpr bool is_used(int p) {
    for (int i = 0; i < TILE; ++i)
      for (int t = 0; t < TAPS; ++t)
        if (meets(i, t) && place(i, t) == p) return true;
    return false;
  }
  // The places that are used, one after the other.
  static __device__ constexpr int count() {
    int found = 0;
    for (int p = 0; p < SPAN; ++p) found += is_used(p);
    return found;
  }
  static __device__ constexpr int used(int n) {
    for (int p = 0; p < SPAN; ++p)
      if (is_used(p) && n-- == 0) return p;
    return 0;
  }
  // Which of the used places are inside of 0 .. size - 1: a bit for each of the first 32; the others are compared.
  static __device__ __forceinline__ u32 inside(int begin, int size) {
    u32 bits = 0;
#pragma unroll
    for (int n = 0; n < count() && n < 32; ++n) bits |= (u32)((unsigned)(begin + used(n)) < (unsigned)size) << n;
    return bits;
  }
  static __device__ __forceinline__ bool is_inside(u32 bits, int n, int begin, int size) {
    return n < 32 ? bits >> n & 1 : (unsigned)(begin + used(n)) < (unsigned)size;
  }
};

template <int N>
struct Number {
  static constexpr int value = N;
};

// body(Number<0>), body(Number<1>), ...
template <int N, int I = 0, class Body>
__device__ __forceinline__ void unrolled(const Body& body) {
  if constexpr (I < N) {
    body(Number<I>());
    unrolled<N, I + 1>(body);
  }
}
