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
// The input's gradient is the same sum over the gradient, with the taps in reverse order, the weight transposed. With a
// stride, pixels STEP_Y x STEP_X apart meet the same taps, every STEP-th of the weight's, in neighbours of the gradient:
// they are a phase, and each block has one.
//
// Macros: CHANNELS that are summed, OUTPUTS: in memory; WEIGHT_TAPS_Y, WEIGHT_TAPS_X; TAPS_Y, TAPS_X: that a result
// meets, at most; STEP_Y, STEP_X: of the input's gradient, its stride; STRIDE_Y, STRIDE_X: of what is read; PADDING_Y,
// PADDING_X, DILATION_Y, DILATION_X; INPUT_GRAD; GRANULE: bytes that are copied at once; WIDTH: results that are stored
// at once; BIAS, RESIDUAL, RELU: of the epilogue.
#define ELEMENT 4
#include "patch.cuh"

struct Geometry {
  int slices, iterations;         // slices: blocks side by side that have all phases of all outputs
  int num_units, strips, bands;   // tiles of a phase; in a row, and in a column of an image
  int height, width;              // of first
  int out_height, out_width;
};

constexpr int MOST_TAPS = TAPS_Y * TAPS_X, PHASES = STEP_Y * STEP_X, PIXEL_THREADS = TILE_Y * TILE_X / LANE_PIXELS;
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

// The results of a phase along an axis: how many taps they meet, and the pixel that the first tap of the first one reads.
// Forward, there is one phase.
struct Phase {
  int number, taps, start;

  __device__ __forceinline__ Phase(int number, int weight_taps, int step, int padding, int dilation) : number(number) {
    taps = (weight_taps - number + step - 1) / step;
    start = INPUT_GRAD ? (padding - number + step - 1) / step - (taps - 1) * dilation : -padding;
  }

  // Of the i-th result.
  __device__ __forceinline__ int place(int i, int step, int padding, int dilation) const {
    return INPUT_GRAD ? (i + start + (taps - 1) * dilation) * step + number - padding : i;
  }

  // Of the i-th tap, in the weight.
  __device__ __forceinline__ int tap(int i, int step) const { return INPUT_GRAD ? number + (taps - 1 - i) * step : i; }
};

// (tap, channel, output), zeros beyond the last output; neighbours read neighbours.
__device__ __forceinline__ void load_weight(float* to, const float* __restrict__ weight, int first_output,
                                            const Phase& down, const Phase& right) {
  const int taps = down.taps * right.taps;
  for (int e = threadIdx.x; e < taps * CHANNELS * BLOCK_OUTPUTS; e += NUM_THREADS) {
    const int fast = INPUT_GRAD ? BLOCK_OUTPUTS : CHANNELS, rest = e / fast;
    const int tap = INPUT_GRAD ? rest / CHANNELS : rest % taps;
    const int c = INPUT_GRAD ? rest % CHANNELS : e % fast, k = INPUT_GRAD ? e % fast : rest / taps;
    const int output = first_output + k;
    const int y = tap / right.taps, x = tap - y * right.taps, all = WEIGHT_TAPS_Y * WEIGHT_TAPS_X;
    const int of_weight = down.tap(y, STEP_Y) * WEIGHT_TAPS_X + right.tap(x, STEP_X);
    const int from = INPUT_GRAD ? (c * all + of_weight) * OUTPUTS + output : (output * all + of_weight) * CHANNELS + c;
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
  uint4* const pixels = patch + MOST_TAPS * CHANNELS * WEIGHT_PITCH;
  const int block = blockIdx.x / g.slices, slice = blockIdx.x - block * g.slices;
  const int phase = (slice + block) % PHASES;  // a multiprocessor's blocks should not all have the most taps
  const int first_output = slice / PHASES * BLOCK_OUTPUTS;
  const Phase down(phase / STEP_X, WEIGHT_TAPS_Y, STEP_Y, PADDING_Y, DILATION_Y);
  const Phase right(phase % STEP_X, WEIGHT_TAPS_X, STEP_X, PADDING_X, DILATION_X);
  const int taps = down.taps * right.taps;
  const int output_lane = threadIdx.x % OUTPUT_LANES, first_pixel = threadIdx.x / OUTPUT_LANES;
  const float4* const my_weight = reinterpret_cast<const float4*>(patch) + output_lane;
  int places[LANE_PIXELS];  // of the pixels that the first tap meets
#pragma unroll
  for (int m = 0; m < LANE_PIXELS; ++m) {
    const int pixel = first_pixel + m * PIXEL_THREADS;
    places[m] = (pixel / TILE_X * STRIDE_Y * PATCH_X + pixel % TILE_X * STRIDE_X) * PITCH;
  }
  follow();
  load_weight(reinterpret_cast<float*>(patch), weight, first_output, down, right);
#pragma unroll 1
  for (int iteration = 0; iteration < g.iterations; ++iteration) {
    const int unit = block * g.iterations + iteration;
    if (unit >= g.num_units) break;
    const auto [image, row, column] = tile_at(unit, g.strips, g.bands);
    if (iteration > 0) __syncthreads();  // the tile before this one is read
    copy_pixels<PATCH_Y, PATCH_X, PITCH, CHANNELS, CHANNELS, GRANULE, NUM_THREADS>(
        pixels, first, image, row * STRIDE_Y + down.start, column * STRIDE_X + right.start, g.height, g.width, 0);
    wait_for_copies();
    __syncthreads();
    float sums[LANE_PIXELS][LANE_OUTPUTS], totals[LANE_PIXELS][LANE_OUTPUTS];
#pragma unroll
    for (int i = 0; i < LANE_PIXELS * LANE_OUTPUTS; ++i) totals[i / LANE_OUTPUTS][i % LANE_OUTPUTS] = 0.f;
#pragma unroll 1
    for (int tap = 0; tap < taps; tap += PART_TAPS)
#pragma unroll 1
      for (int channel = 0; channel < CHANNELS; channel += PART_CHANNELS) {
#pragma unroll
        for (int i = 0; i < LANE_PIXELS * LANE_OUTPUTS; ++i) sums[i / LANE_OUTPUTS][i % LANE_OUTPUTS] = 0.f;
#pragma unroll(CHANNELS <= 4 ? TAPS_X : 1)
        for (int t = tap; t < min(tap + PART_TAPS, taps); ++t) {
          const int y = t / right.taps, x = t - y * right.taps;
          const float4* const there =
              reinterpret_cast<const float4*>(pixels) + (y * DILATION_Y * PATCH_X + x * DILATION_X) * PITCH;
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
      const int pixel = first_pixel + m * PIXEL_THREADS;
      const int y = down.place(row + pixel / TILE_X, STEP_Y, PADDING_Y, DILATION_Y);
      const int x = right.place(column + pixel % TILE_X, STEP_X, PADDING_X, DILATION_X);
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
