// Batch norms' running statistics folded into the convolutions before them, of many layers in one launch:
//
//   scale = gamma / sqrt(var + eps);   weight * scale;   (bias - mean) * scale + beta
//
// Each program has some filters of one layer. The folded weights are dense, with channels innermost.
//
// Macros: GIVEN, MADE: types of what is read and written, 0: float32, 1: float16, 2: bfloat16.
#include "conversions.cuh"
#include "overlap.cuh"

typedef unsigned long long u64;

#define MOST 36           // layers: a launch has 4 KiB of arguments
#define MOST_FILTERS 64   // of a program
#define THREADS 256
#define QUADS 4           // of neighbouring elements: what a thread loads at once

struct Layer {
  u64 folded, folded_bias, weight, bias, gamma, beta, mean, var;  // addresses; bias, gamma, beta: 0 if there is none
  int num_filters, num_taps, num_channels, kernel_width;          // num_taps: elements of a filter
  int filter_stride, channel_stride, row_stride, column_stride;   // of the weight
  int is_dense;                                                   // it is laid out as the folded one
  int filters_at_once, first_program;
  float eps;
};

struct Table {
  int num_layers, unused;
  Layer layers[MOST];
};

template <int TYPE>
__device__ __forceinline__ float loaded(u64 address, long long i) {
  if constexpr (TYPE == 0)
    return ((const float*)address)[i];
  else
    return half_of<TYPE == 2>(((const u16*)address)[i], false);
}

template <int TYPE>
__device__ __forceinline__ void store(u64 address, long long i, float value) {
  if constexpr (TYPE == 0)
    ((float*)address)[i] = value;
  else
    ((u16*)address)[i] = (u16)rounded_pair<TYPE == 2>(value, 0.f);
}

template <int TYPE>
__device__ __forceinline__ float4 loaded_4(u64 address, long long i) {
  if constexpr (TYPE == 0) {
    return *(const float4*)((const float*)address + i);
  } else {
    const uint2 words = *(const uint2*)((const u16*)address + i);
    return make_float4(
      half_of<TYPE == 2>(words.x, false), half_of<TYPE == 2>(words.x, true), half_of<TYPE == 2>(words.y, false),
      half_of<TYPE == 2>(words.y, true));
  }
}

template <int TYPE>
__device__ __forceinline__ void store_4(u64 address, long long i, float4 v) {
  if constexpr (TYPE == 0)
    *(float4*)((float*)address + i) = v;
  else
    *(uint2*)((u16*)address + i) = make_uint2(rounded_pair<TYPE == 2>(v.x, v.y), rounded_pair<TYPE == 2>(v.z, v.w));
}

// Elements of a program's filters in memory order, of which its threads take neighbouring quads in turn.
struct Elements {
  u64 weight, folded;  // addresses
  long long begin;
  int number;

  __device__ __forceinline__ int place(int start, int quad) const {
    return start + 4 * (quad * THREADS + (int)threadIdx.x);
  }

  // The quads of this thread from an element on; all are underway before the first one is needed.
  __device__ __forceinline__ void load(float4 (&v)[QUADS], int start) const {
#pragma unroll
    for (int quad = 0; quad < QUADS; ++quad) {
      const int i = place(start, quad);
      if (i < number) v[quad] = loaded_4<GIVEN>(weight, begin + i);
    }
  }

  __device__ __forceinline__ void scale_and_store(
    const float4 (&v)[QUADS], int start, const float* scales, int num_taps) const {
#pragma unroll
    for (int quad = 0; quad < QUADS; ++quad) {
      const int i = place(start, quad);
      if (i >= number) return;
      const float scale = scales[i / num_taps];
      store_4<MADE>(
        folded, begin + i,
        make_float4(v[quad].x * scale, v[quad].y * scale, v[quad].z * scale, v[quad].w * scale));
    }
  }
};

extern "C" __global__ void __launch_bounds__(THREADS) fold_batch_norms(const __grid_constant__ Table table) {
  follow();
  __shared__ float scales[MOST_FILTERS];
  int number = 0;
  while (number + 1 < table.num_layers && (int)blockIdx.x >= table.layers[number + 1].first_program) ++number;
  const Layer& layer = table.layers[number];
  const int first = ((int)blockIdx.x - layer.first_program) * layer.filters_at_once;
  const int num_filters = min(layer.filters_at_once, layer.num_filters - first);
  const int num_taps = layer.num_taps;
  const Elements elements = {layer.weight, layer.folded, (long long)first * num_taps, num_filters * num_taps};
  const bool in_quads = layer.is_dense && num_taps % 4 == 0;
  float4 v[QUADS];
  if (in_quads) elements.load(v, 0);  // while scales are on their way
  if ((int)threadIdx.x < num_filters) {
    const int filter = first + threadIdx.x;
    float scale = __frcp_rn(__fsqrt_rn(loaded<GIVEN>(layer.var, filter) + layer.eps));
    if (layer.gamma) scale *= loaded<GIVEN>(layer.gamma, filter);
    float shift = -loaded<GIVEN>(layer.mean, filter);
    if (layer.bias) shift += loaded<GIVEN>(layer.bias, filter);
    shift *= scale;
    if (layer.beta) shift += loaded<GIVEN>(layer.beta, filter);
    store<MADE>(layer.folded_bias, filter, shift);
    scales[threadIdx.x] = scale;
  }
  __syncthreads();
  if (in_quads) {
    for (int start = 0; start < elements.number;) {
      elements.scale_and_store(v, start, scales, num_taps);
      start += 4 * QUADS * THREADS;
      elements.load(v, start);
    }
    return;
  }
  for (int i = threadIdx.x; i < elements.number; i += THREADS) {
    const int filter = i / num_taps, tap = i % num_taps;
    const int channel = tap % layer.num_channels, place = tap / layer.num_channels;
    const long long from = (long long)(first + filter) * layer.filter_stride + channel * layer.channel_stride +
                           place / layer.kernel_width * layer.row_stride +
                           place % layer.kernel_width * layer.column_stride;
    store<MADE>(layer.folded, elements.begin + i, loaded<GIVEN>(layer.weight, from) * scales[filter]);
  }
}
