// The weight's gradient of a 1x1 convolution in 16 bits, where a block's registers hold all of it:
//
//   out (output, input) = sum over pixels of grad (pixel, output) * input (pixel, input)
//
// A block takes one tile of PIXELS after the other, and copies the next STAGES - 1 ahead. Sums stay in registers from tile
// to tile. The blocks' sums, float32, are parts of the result.
//
// A warp has WARP_OUTPUTS x 16 outputs and WARP_INPUTS x 8 inputs. Where there are more (WARPS_OUTPUTS, WARPS_INPUTS), they
// are side by side; SPLITS warps share the pixels, and their sums are added in the end, in one order. What lies between a
// pixel's last channel and the next pixel is read too, and meets results that nobody wants.
//
// Macros: DTYPE 1 float16 | 2 bfloat16; OUTPUTS, INPUTS; PIXELS (multiple of 16 SPLITS), STAGES (2 and more), BLOCKS of a
// multiprocessor; WARP_OUTPUTS, WARPS_OUTPUTS, WARP_INPUTS, WARPS_INPUTS, SPLITS.
#include "pixels.cuh"
#include "../splits.cuh"

struct Geometry {
  int num_pixels, iterations;  // iterations: tiles of a block
};

using Grads = Pixels<OUTPUTS>;
using Inputs = Pixels<INPUTS>;
constexpr int WARPS = WARPS_OUTPUTS * WARPS_INPUTS, NUM_THREADS = 32 * WARPS * SPLITS;
constexpr int SUMS = WARP_OUTPUTS * WARP_INPUTS * 4;
constexpr int GRAD_BYTES = Grads::room(PIXELS), TILE_BYTES = GRAD_BYTES + Inputs::room(PIXELS);

__device__ __forceinline__ void copy_tile(char* to, const char* __restrict__ grad, const char* __restrict__ input, int pixel,
                                          int num_pixels) {
  Grads::copy<PIXELS, NUM_THREADS>(to, grad, pixel, num_pixels, threadIdx.x);
  Inputs::copy<PIXELS, NUM_THREADS>(to + GRAD_BYTES, input, pixel, num_pixels, threadIdx.x);
}

extern "C" __global__ void __launch_bounds__(NUM_THREADS, BLOCKS)
    flat_gemm_weight_grad(const char* __restrict__ grad, const char* __restrict__ input, float* __restrict__ partial,
                          const Geometry g) {
  char* const tiles = reinterpret_cast<char*>(memory);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, split = warp / WARPS, beside = warp % WARPS;
  const int my_output = beside / WARPS_INPUTS * WARP_OUTPUTS * 16, my_input = beside % WARPS_INPUTS * WARP_INPUTS * 8;
  const int begin = blockIdx.x * PIXELS, step = gridDim.x * PIXELS;
  follow_and_hold();
#pragma unroll
  for (int i = 0; i < STAGES - 1; ++i) {
    if (i < g.iterations) copy_tile(tiles + i * TILE_BYTES, grad, input, begin + i * step, g.num_pixels);
    commit_copies();
  }
  float sums[SUMS / 4][4];  // of 16 outputs and 8 inputs
#pragma unroll
  for (int i = 0; i < SUMS; ++i) sums[i / 4][i % 4] = 0.f;
  int stage = 0;
#pragma unroll 1
  for (int iteration = 0; iteration < g.iterations; ++iteration) {
    wait_for_copies_but<STAGES - 2>();
    __syncthreads();  // all threads' copies are there, and the tile before this one is read
    const int ahead = stage == 0 ? STAGES - 1 : stage - 1;
    if (iteration + STAGES - 1 < g.iterations)
      copy_tile(tiles + ahead * TILE_BYTES, grad, input, begin + (iteration + STAGES - 1) * step, g.num_pixels);
    commit_copies();
    const char* const grads = tiles + stage * TILE_BYTES;
    const char* const inputs = grads + GRAD_BYTES;
#pragma unroll
    for (int chunk = 0; chunk < PIXELS / 16 / SPLITS; ++chunk) {
      const int pixel = (chunk * SPLITS + split) * 16;
      u32 left[WARP_OUTPUTS][4];
#pragma unroll
      for (int m = 0; m < WARP_OUTPUTS; ++m)
        Grads::as_columns(left[m], grads + pixel * Grads::PITCH, my_output + m * 16, lane);
#pragma unroll
      for (int n = 0; n < WARP_INPUTS; ++n) {
        u32 right[2];
        Inputs::as_terms(right, inputs + pixel * Inputs::PITCH, my_input + n * 8, lane);
#pragma unroll
        for (int m = 0; m < WARP_OUTPUTS; ++m) {
          const u32(&a)[4] = left[m];
          multiply_16<DTYPE == 2>(sums[m * WARP_INPUTS + n], a[0], a[1], a[2], a[3], right[0], right[1]);
        }
      }
    }
    stage = stage == STAGES - 1 ? 0 : stage + 1;
  }
  let_next_begin();
  if (SPLITS > 1) {
    add_splits(sums, memory + beside * (SUMS * 32) + lane, split);
    if (split > 0) return;
  }
#pragma unroll
  for (int m = 0; m < WARP_OUTPUTS; ++m)
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      const int output = my_output + m * 16 + below * 8 + lane / 4;
      if (output >= OUTPUTS) continue;
      float* const line = partial + ((long long)blockIdx.x * OUTPUTS + output) * INPUTS;
#pragma unroll
      for (int n = 0; n < WARP_INPUTS; ++n) {
        const int channel = my_input + n * 8 + lane % 4 * 2;
        const float(&mine)[4] = sums[m * WARP_INPUTS + n];
        if (INPUTS % 2 == 0) {
          if (channel < INPUTS) *reinterpret_cast<float2*>(line + channel) = make_float2(mine[2 * below], mine[2 * below + 1]);
        } else {
          if (channel < INPUTS) line[channel] = mine[2 * below];
          if (channel + 1 < INPUTS) line[channel + 1] = mine[2 * below + 1];
        }
      }
    }
}
