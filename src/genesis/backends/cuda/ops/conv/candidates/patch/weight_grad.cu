// The weight's gradient of a convolution of few channels, in 16 bits on tensor cores:
//
//   out (output, tap, input) = sum over pixels of grad (pixel, output) * input (pixel at the tap, input)
//
// A block takes a tile of TILE_Y x TILE_X pixels of the gradient, and the pixels of the input that its taps meet, from
// memory once: they lie in shared memory, zeros where there are none, and each tap reads them from a place of its own.
// Sums stay in registers from tile to tile. The blocks' sums, float32, are parts of the result.
//
// A product is of 16 outputs, 16 pixels (two rows of eight) and eight inputs. What lies between a pixel's channels and the
// next pixel in shared memory is read too, and meets results that nobody wants.
//
// A warp has one row of taps, WARP_OUTPUTS x 16 outputs and WARP_INPUTS x 8 inputs. Where a block has more (WARPS_OUTPUTS,
// WARPS_INPUTS), they are side by side; SPLITS warps share the pixels, and their sums are added in the end, in one order.
//
// Macros: DTYPE 1 float16 | 2 bfloat16; OUTPUTS, INPUTS: channels in memory; BLOCK_OUTPUTS, BLOCK_INPUTS of a block;
// TAPS_Y, TAPS_X, STRIDE_Y, STRIDE_X, PADDING_Y, PADDING_X, DILATION_Y, DILATION_X; GRAD_GRANULE, INPUT_GRANULE: bytes
// that are copied at once.
#include "patch.cuh"
#include "../splits.cuh"

struct Geometry {
  int slices_outputs, slices_inputs, iterations;  // slices: blocks side by side that have all channels
  int num_units, strips, bands;                   // tiles; in a row, and in a column of an image
  int height, width;                              // of the input
  int out_height, out_width;                      // of the gradient
};

constexpr int GRAD_PITCH = odd_pitch(BLOCK_OUTPUTS), INPUT_PITCH = odd_pitch(BLOCK_INPUTS);
constexpr int GRAD_UNITS = TILE_Y * TILE_X * GRAD_PITCH + 8;  // of 16 bytes; beyond the last pixel is read, too
constexpr int WARPS = TAPS_Y * WARPS_OUTPUTS * WARPS_INPUTS, NUM_THREADS = 32 * WARPS * SPLITS;
constexpr int SUMS = WARP_OUTPUTS * WARP_INPUTS * TAPS_X * 4;

__device__ constexpr int place(int m, int n, int s) { return (m * WARP_INPUTS + n) * TAPS_X + s; }

extern "C" __global__ void __launch_bounds__(NUM_THREADS)
    patch_weight_grad(const char* __restrict__ grad, const char* __restrict__ input, float* __restrict__ partial,
                      const Geometry g) {
  uint4* const input_pixels = patch + GRAD_UNITS;
  const int slices = g.slices_outputs * g.slices_inputs, part = blockIdx.x / slices, slice = blockIdx.x - part * slices;
  const int first_output = slice / g.slices_inputs * BLOCK_OUTPUTS;
  const int first_input = slice % g.slices_inputs * BLOCK_INPUTS;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, split = warp / WARPS;
  const int tap_row = warp % TAPS_Y, beside = warp / TAPS_Y % (WARPS_OUTPUTS * WARPS_INPUTS);
  const int my_output = beside / WARPS_INPUTS * WARP_OUTPUTS * 16, my_input = beside % WARPS_INPUTS * WARP_INPUTS * 8;
  // The pixel, of a chunk of two rows of eight, whose channels this lane points to: outputs 0 - 7 and 8 - 15 of eight
  // pixels, then those of the row below; inputs of eight pixels, then of those below.
  const uint4* const my_grads =
      patch + (lane / 16 * TILE_X + lane % 8) * GRAD_PITCH + my_output / 8 + lane / 8 % 2;
  const uint4* const my_inputs =
      input_pixels + ((lane / 8 % 2 * STRIDE_Y + tap_row * DILATION_Y) * PATCH_X + lane % 8 * STRIDE_X) * INPUT_PITCH +
      my_input / 8;
  follow_and_hold();
  float sums[SUMS / 4][4];  // of (16 outputs, 8 inputs, tap)
#pragma unroll
  for (int i = 0; i < SUMS; ++i) sums[i / 4][i % 4] = 0.f;
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
#pragma unroll 1
    for (int chunk = split; chunk < CHUNKS; chunk += SPLITS) {
      const int y = chunk / CHUNKS_X * 2, x = chunk % CHUNKS_X * 8;
      u32 left[WARP_OUTPUTS][4];
#pragma unroll
      for (int m = 0; m < WARP_OUTPUTS; ++m)
        load_transposed(left[m], my_grads + (y * TILE_X + x) * GRAD_PITCH + 2 * m);
#pragma unroll
      for (int s = 0; s < TAPS_X; ++s)
#pragma unroll
        for (int n = 0; n < WARP_INPUTS; ++n) {
          u32 right[2];
          load_transposed(right, my_inputs + (y * STRIDE_Y * PATCH_X + x * STRIDE_X + s * DILATION_X) * INPUT_PITCH + n);
#pragma unroll
          for (int m = 0; m < WARP_OUTPUTS; ++m)
            multiply_16<DTYPE == 2>(sums[place(m, n, s)], left[m][0], left[m][1], left[m][2], left[m][3], right[0], right[1]);
        }
    }
  }
  let_next_begin();
  if (SPLITS > 1) {
    add_splits(sums, reinterpret_cast<float*>(patch) + warp % WARPS * (SUMS * 32) + lane, split);
    if (split > 0) return;
  }
  const int output = first_output + my_output + lane / 4, channel = first_input + my_input + lane % 4 * 2;
  const int last_output = min(first_output + BLOCK_OUTPUTS, OUTPUTS);
  const int last_input = min(first_input + BLOCK_INPUTS, INPUTS);
#pragma unroll
  for (int m = 0; m < WARP_OUTPUTS; ++m)
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      const int k = output + m * 16 + below * 8;
      if (k >= last_output) continue;
      float* const line = partial + (((long long)part * OUTPUTS + k) * TAPS_Y + tap_row) * (TAPS_X * INPUTS);
#pragma unroll
      for (int s = 0; s < TAPS_X; ++s)
#pragma unroll
        for (int n = 0; n < WARP_INPUTS; ++n) {
          const int c = channel + n * 8;
          if (c < last_input)  // INPUTS is even
            *reinterpret_cast<float2*>(line + s * INPUTS + c) =
                make_float2(sums[place(m, n, s)][2 * below], sums[place(m, n, s)][2 * below + 1]);
        }
    }
}
