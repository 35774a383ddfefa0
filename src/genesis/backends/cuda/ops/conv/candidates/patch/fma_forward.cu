// A convolution of few channels in float32, by multiply-adds:
//
//   out (pixel, output) = act(sum over taps and channels of first (pixel at the tap, channel) * weight + bias + residual)
//
// A block keeps the weight in shared memory, and takes one tile of TILE_Y x TILE_X pixels of the result after the other.
// The pixels that a tile's taps meet come from memory once: they lie in shared memory, zeros where there are none, and
// each tap reads them from a place of its own.
//
// A thread has LANE_PIXELS pixels and LANE_OUTPUTS outputs. OUTPUT_LANES neighbours have the same pixels, and all outputs
// of the block: fours of them lie side by side. What each reads of four channels it multiplies with all of its own.
//
// A long chain of additions loses digits. Sums are added up in parts of PART_TAPS taps and PART_CHANNELS channels, which
// takes as many registers again; or (FOURS) of four channels, which takes an addition for four multiply-adds.
//
// The input's gradient is the same sum over the gradient, with the taps in reverse order, the weight transposed; stride 1.
//
// Macros: CHANNELS that are summed, OUTPUTS: in memory; TAPS_Y, TAPS_X, STRIDE_Y, STRIDE_X, PADDING_Y, PADDING_X,
// DILATION_Y, DILATION_X; INPUT_GRAD; GRANULE: bytes that are copied at once; WIDTH: results that are stored at once;
// BIAS, RESIDUAL, RELU: of the epilogue.
#define ELEMENT 4
#include "patch.cuh"

struct Geometry {
  int slices, iterations;         // slices: blocks side by side that have all outputs
  int num_units, strips, bands;   // tiles; in a row, and in a column of an image
  int height, width;              // of first
  int out_height, out_width;
};

constexpr int TAPS = TAPS_Y * TAPS_X, PIXEL_THREADS = TILE_Y * TILE_X / LANE_PIXELS;
constexpr int BLOCK_OUTPUTS = LANE_OUTPUTS * OUTPUT_LANES, NUM_THREADS = PIXEL_THREADS * OUTPUT_LANES;
constexpr int PITCH = odd_pitch(CHANNELS);
constexpr int WEIGHT_PITCH = BLOCK_OUTPUTS / 4 | 1;  // of a tap's channel, in 16 bytes
constexpr int WHOLE_CHANNELS = CHANNELS / 4 * 4, REST = CHANNELS - WHOLE_CHANNELS;

template <int N>
struct Floats;
template <>
struct Floats<1> { using type = float; };
template <>
struct Floats<2> { using type = float2; };
template <>
struct Floats<4> { using type = float4; };
using Stored = Floats<WIDTH>::type;

// (tap, channel, output), zeros beyond the last output; neighbours read neighbours.
__device__ __forceinline__ void load_weight(float* to, const float* __restrict__ weight, int first_output) {
  for (int e = threadIdx.x; e < TAPS * CHANNELS * BLOCK_OUTPUTS; e += NUM_THREADS) {
    const int fast = INPUT_GRAD ? BLOCK_OUTPUTS : CHANNELS, rest = e / fast;
    const int tap = INPUT_GRAD ? rest / CHANNELS : rest % TAPS;
    const int c = INPUT_GRAD ? rest % CHANNELS : e % fast, k = INPUT_GRAD ? e % fast : rest / TAPS;
    const int output = first_output + k;
    const int from = INPUT_GRAD ? (c * TAPS + TAPS - 1 - tap) * OUTPUTS + output : (output * TAPS + tap) * CHANNELS + c;
    to[(tap * CHANNELS + c) * (WEIGHT_PITCH * 4) + k] = output < OUTPUTS ? __ldg(weight + from) : 0.f;
  }
}

// The products of NUMBER channels, four at most.
template <int NUMBER>
__device__ __forceinline__ void multiply(float (&sums)[LANE_PIXELS][LANE_OUTPUTS], const float4* pixels,
                                         const int (&places)[LANE_PIXELS], const float4* weight) {
  float x[LANE_PIXELS][4];
#pragma unroll
  for (int m = 0; m < LANE_PIXELS; ++m) {
    const float4 found = pixels[places[m]];
    x[m][0] = found.x, x[m][1] = found.y, x[m][2] = found.z, x[m][3] = found.w;
  }
#pragma unroll
  for (int j = 0; j < LANE_OUTPUTS; j += 4) {
    float w[NUMBER][4];
#pragma unroll
    for (int i = 0; i < NUMBER; ++i) {
      const float4 found = weight[i * WEIGHT_PITCH + j / 4 * OUTPUT_LANES];
      w[i][0] = found.x, w[i][1] = found.y, w[i][2] = found.z, w[i][3] = found.w;
    }
#pragma unroll
    for (int m = 0; m < LANE_PIXELS; ++m)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float sum = FOURS ? x[m][0] * w[0][k] : fmaf(x[m][0], w[0][k], sums[m][j + k]);
#pragma unroll
        for (int i = 1; i < NUMBER; ++i) sum = fmaf(x[m][i], w[i][k], sum);
        sums[m][j + k] = FOURS ? sums[m][j + k] + sum : sum;
      }
  }
}

extern "C" __global__ void __launch_bounds__(NUM_THREADS)
    patch_fma_forward(const char* __restrict__ first, const float* __restrict__ weight, float* __restrict__ out,
                      const float* __restrict__ bias, const float* __restrict__ residual, const Geometry g) {
  uint4* const pixels = patch + TAPS * CHANNELS * WEIGHT_PITCH;
  const int block = blockIdx.x / g.slices, first_output = (blockIdx.x - block * g.slices) * BLOCK_OUTPUTS;
  const int output_lane = threadIdx.x % OUTPUT_LANES, first_pixel = threadIdx.x / OUTPUT_LANES;
  const float4* const my_weight = reinterpret_cast<const float4*>(patch) + output_lane;
  int places[LANE_PIXELS];  // of the pixels that the first tap meets
#pragma unroll
  for (int m = 0; m < LANE_PIXELS; ++m) {
    const int pixel = first_pixel + m * PIXEL_THREADS;
    places[m] = (pixel / TILE_X * STRIDE_Y * PATCH_X + pixel % TILE_X * STRIDE_X) * PITCH;
  }
  follow();
  load_weight(reinterpret_cast<float*>(patch), weight, first_output);
#pragma unroll 1
  for (int iteration = 0; iteration < g.iterations; ++iteration) {
    const int unit = block * g.iterations + iteration;
    if (unit >= g.num_units) break;
    const auto [image, row, column] = tile_at(unit, g.strips, g.bands);
    if (iteration > 0) __syncthreads();  // the tile before this one is read
    copy_pixels<PATCH_Y, PATCH_X, PITCH, CHANNELS, CHANNELS, GRANULE, NUM_THREADS>(
        pixels, first, image, row * STRIDE_Y - PADDING_Y, column * STRIDE_X - PADDING_X, g.height, g.width, 0);
    wait_for_copies();
    __syncthreads();
    float sums[LANE_PIXELS][LANE_OUTPUTS], totals[LANE_PIXELS][LANE_OUTPUTS];
#pragma unroll
    for (int i = 0; i < LANE_PIXELS * LANE_OUTPUTS; ++i) totals[i / LANE_OUTPUTS][i % LANE_OUTPUTS] = 0.f;
#pragma unroll 1
    for (int tap = 0; tap < TAPS; tap += PART_TAPS)
#pragma unroll 1
      for (int channel = 0; channel < CHANNELS; channel += PART_CHANNELS) {
#pragma unroll
        for (int i = 0; i < LANE_PIXELS * LANE_OUTPUTS; ++i) sums[i / LANE_OUTPUTS][i % LANE_OUTPUTS] = 0.f;
#pragma unroll(CHANNELS <= 4 ? TAPS_X : 1)
        for (int t = tap; t < min(tap + PART_TAPS, TAPS); ++t) {
          const float4* const there =
              reinterpret_cast<const float4*>(pixels) + (t / TAPS_X * DILATION_Y * PATCH_X + t % TAPS_X * DILATION_X) * PITCH;
          const float4* const of_tap = my_weight + t * CHANNELS * WEIGHT_PITCH;
#pragma unroll 2
          for (int c = channel; c < min(channel + PART_CHANNELS, WHOLE_CHANNELS); c += 4)
            multiply<4>(sums, there + c / 4, places, of_tap + c * WEIGHT_PITCH);
          if constexpr (REST > 0)
            if (channel + PART_CHANNELS >= CHANNELS)
              multiply<REST>(sums, there + WHOLE_CHANNELS / 4, places, of_tap + WHOLE_CHANNELS * WEIGHT_PITCH);
        }
#pragma unroll
        for (int i = 0; i < LANE_PIXELS * LANE_OUTPUTS; ++i)
          totals[i / LANE_OUTPUTS][i % LANE_OUTPUTS] += sums[i / LANE_OUTPUTS][i % LANE_OUTPUTS];
      }
#pragma unroll
    for (int m = 0; m < LANE_PIXELS; ++m) {
      const int pixel = first_pixel + m * PIXEL_THREADS, y = row + pixel / TILE_X, x = column + pixel % TILE_X;
      if (y >= g.out_height || x >= g.out_width) continue;
      const long long line = (((long long)image * g.out_height + y) * g.out_width + x) * OUTPUTS;
#pragma unroll
      for (int j = 0; j < LANE_OUTPUTS; j += WIDTH) {
        const int output = first_output + (j / 4 * OUTPUT_LANES + output_lane) * 4 + j % 4;
        if (output >= OUTPUTS) continue;  // WIDTH divides both
        __align__(16) float results[WIDTH];
        Stored added;
        if (RESIDUAL) added = __ldg(reinterpret_cast<const Stored*>(residual + line + output));
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
          float result = totals[m][j + i];
          if (BIAS) result += __ldg(bias + output + i);
          if (RESIDUAL) result += reinterpret_cast<const float*>(&added)[i];
          results[i] = RELU && result < 0.f ? 0.f : result;  // NaN stays NaN
        }
        *reinterpret_cast<Stored*>(out + line + output) = *reinterpret_cast<Stored*>(results);
      }
    }
  }
}
