// Shared by the depthwise kernels: vectors of channels in memory and registers, and where results meet taps.
//
// Macros: DTYPE 0 float32 | 1 float16 | 2 bfloat16.
#pragma once
#include "../overlap.cuh"
#include "../conversions.cuh"

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
