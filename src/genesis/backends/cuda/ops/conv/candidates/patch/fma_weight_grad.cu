// The weight's gradient of a convolution of few channels in float32, by multiply-adds:
//
//   out (output, tap, input) = sum over pixels of grad (pixel, output) * input (pixel at the tap, input)
//
// A block takes a tile of TILE_Y x TILE_X pixels of the gradient, and the pixels of the input that its taps meet, from
// memory once: they lie in shared memory, zeros where there are none, and each tap reads them from a place of its own.
// Sums of a tile are added to those of the tiles before it: a long chain of additions loses digits. The blocks' sums are
// parts of the result.
//
// A thread has THREAD_OUTPUTS outputs, THREAD_TAPS taps of a row and THREAD_INPUTS inputs. What lies between a pixel's
// channels and the next pixel in shared memory is read too, and meets results that nobody wants. SPLITS threads share the
// pixels, and their sums are added in the end, in one order.
//
// Macros: OUTPUTS, INPUTS: channels in memory; BLOCK_OUTPUTS, BLOCK_INPUTS of a block; TAPS_Y, TAPS_X, STRIDE_Y, STRIDE_X,
// PADDING_Y, PADDING_X, DILATION_Y, DILATION_X; NUM_THREADS; GRAD_GRANULE, INPUT_GRANULE: bytes that are copied at once.
#define ELEMENT 4
#include "patch.cuh"

struct Geometry {
  int slices_outputs, slices_inputs, iterations;  // slices: blocks side by side that have all channels
  int num_units, strips, bands;                   // tiles; in a row, and in a column of an image
  int height, width;                              // of the input
  int out_height, out_width;                      // of the gradient
};

constexpr int TAPS = TAPS_Y * TAPS_X, TAP_GROUPS = TAPS / THREAD_TAPS;
constexpr int OUTPUT_GROUPS = (BLOCK_OUTPUTS + THREAD_OUTPUTS - 1) / THREAD_OUTPUTS;
constexpr int INPUT_GROUPS = (BLOCK_INPUTS + THREAD_INPUTS - 1) / THREAD_INPUTS;
constexpr int UNITS = OUTPUT_GROUPS * INPUT_GROUPS * TAP_GROUPS;
constexpr int GRAD_PITCH = odd_pitch(BLOCK_OUTPUTS), INPUT_PITCH = odd_pitch(BLOCK_INPUTS);
constexpr int GRAD_UNITS = TILE_Y * TILE_X * GRAD_PITCH + 8;  // of 16 bytes; beyond the last pixel is read, too
constexpr int SUMS = THREAD_TAPS * THREAD_OUTPUTS * THREAD_INPUTS;

__device__ constexpr int place(int s, int k, int c) { return (s * THREAD_OUTPUTS + k) * THREAD_INPUTS + c; }

// N numbers: fours of them are read, whatever the last ones are.
template <int N>
__device__ __forceinline__ void load(float (&to)[N], const uint4* from) {
#pragma unroll
  for (int i = 0; i < N; i += 4) {
    const float4 found = reinterpret_cast<const float4*>(from)[i / 4];
    to[i] = found.x;
    if (i + 1 < N) to[i + 1] = found.y;
    if (i + 2 < N) to[i + 2] = found.z;
    if (i + 3 < N) to[i + 3] = found.w;
  }
}

extern "C" __global__ void __launch_bounds__(NUM_THREADS)
    patch_fma_weight_grad(const char* __restrict__ grad, const char* __restrict__ input, float* __restrict__ partial,
                          const Geometry g) {
  uint4* const input_pixels = patch + GRAD_UNITS;
  const int slices = g.slices_outputs * g.slices_inputs, part = blockIdx.x / slices, slice = blockIdx.x - part * slices;
  const int first_output = slice / g.slices_inputs * BLOCK_OUTPUTS;
  const int first_input = slice % g.slices_inputs * BLOCK_INPUTS;
  const int unit_of_thread = threadIdx.x % UNITS, split = threadIdx.x / UNITS;  // those beyond SPLITS only copy
  const int my_input = unit_of_thread % INPUT_GROUPS * THREAD_INPUTS, others_of_unit = unit_of_thread / INPUT_GROUPS;
  const int my_output = others_of_unit % OUTPUT_GROUPS * THREAD_OUTPUTS;
  const int my_tap = others_of_unit / OUTPUT_GROUPS * THREAD_TAPS;
  const uint4* const my_grads = patch + my_output / 4;
  const uint4* const my_inputs =
      input_pixels + (my_tap / TAPS_X * DILATION_Y * PATCH_X + my_tap % TAPS_X * DILATION_X) * INPUT_PITCH + my_input / 4;
  follow_and_hold();
  float sums[SUMS], totals[SUMS];
#pragma unroll
  for (int i = 0; i < SUMS; ++i) totals[i] = 0.f;
#pragma unroll 1
  for (int iteration = 0; iteration < g.iterations; ++iteration) {
    const int unit = part * g.iterations + iteration;
    if (unit >= g.num_units) break;
    const auto [image, row, column] = tile_at(unit, g.strips, g.bands);
    if (iteration > 0) __syncthreads();  // the tile before this one is read
    copy_pixels<TILE_Y, TILE_X, GRAD_PITCH, BLOCK_OUTPUTS, OUTPUTS, GRAD_GRANULE, NUM_THREADS>(
        patch, grad, image, row, column, g.out_height, g.out_width, first_output);
    copy_pixels<PATCH_Y, PATCH_X, INPUT_PITCH, BLOCK_INPUTS, INPUTS, INPUT_GRANULE, NUM_THREADS>(
        input_pixels, input, image, row * STRIDE_Y - PADDING_Y, column * STRIDE_X - PADDING_X, g.height, g.width,
        first_input);
    wait_for_copies();
    __syncthreads();
    if (split >= SPLITS) continue;
#pragma unroll
    for (int i = 0; i < SUMS; ++i) sums[i] = 0.f;
#pragma unroll 1
    for (int y = 0; y < TILE_Y; ++y)
#pragma unroll 2
      for (int x = split; x < TILE_X; x += SPLITS) {
        float left[THREAD_OUTPUTS];
        load(left, my_grads + (y * TILE_X + x) * GRAD_PITCH);
#pragma unroll
        for (int s = 0; s < THREAD_TAPS; ++s) {
          float right[THREAD_INPUTS];
          load(right, my_inputs + (y * STRIDE_Y * PATCH_X + x * STRIDE_X + s * DILATION_X) * INPUT_PITCH);
#pragma unroll
          for (int k = 0; k < THREAD_OUTPUTS; ++k)
#pragma unroll
            for (int c = 0; c < THREAD_INPUTS; ++c) sums[place(s, k, c)] = fmaf(left[k], right[c], sums[place(s, k, c)]);
        }
      }
#pragma unroll
    for (int i = 0; i < SUMS; ++i) totals[i] += sums[i];
  }
  let_next_begin();
  if (SPLITS > 1) {
    float* const others = reinterpret_cast<float*>(patch) + unit_of_thread;
#pragma unroll 1
    for (int other = 1; other < SPLITS; ++other) {
      __syncthreads();
      if (split == other)
#pragma unroll
        for (int i = 0; i < SUMS; ++i) others[i * UNITS] = totals[i];
      __syncthreads();
      if (split == 0)
#pragma unroll
        for (int i = 0; i < SUMS; ++i) totals[i] += others[i * UNITS];
    }
  }
  if (split > 0) return;
  const int last_output = min(first_output + BLOCK_OUTPUTS, OUTPUTS), last_input = min(first_input + BLOCK_INPUTS, INPUTS);
#pragma unroll
  for (int k = 0; k < THREAD_OUTPUTS; ++k) {
    const int output = first_output + my_output + k;
    if (output >= last_output) continue;
    float* const line = partial + (((long long)part * OUTPUTS + output) * TAPS + my_tap) * INPUTS;
#pragma unroll
    for (int s = 0; s < THREAD_TAPS; ++s)
#pragma unroll
      for (int c = 0; c < THREAD_INPUTS; ++c) {
        const int channel = first_input + my_input + c;
        if (channel < last_input) line[s * INPUTS + channel] = totals[place(s, k, c)];
      }
  }
}
