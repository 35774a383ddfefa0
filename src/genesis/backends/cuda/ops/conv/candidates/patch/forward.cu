// A convolution of few channels in 16 bits on tensor cores:
//
//   out (pixel, output) = act(sum over taps and channels of first (pixel at the tap, channel) * weight + bias + residual)
//
// A block keeps the weight in shared memory, and takes one tile of TILE_Y x TILE_X pixels of the result after the other.
// The pixels that a tile's taps meet come from memory once: they lie in shared memory, zeros where there are none, and
// each tap reads them from a place of its own.
//
// A product is of 16 pixels (two rows of eight), 16 or 8 channels, and eight outputs. A warp has CHUNKS_AT_ONCE such
// groups of pixels, for each of which it loads a part of the weight once, and all of a block's outputs.
//
// The input's gradient is the same sum over the gradient, with the taps in reverse order, the weight transposed; stride 1.
//
// Macros: DTYPE 1 float16 | 2 bfloat16; CHANNELS that are summed, OUTPUTS: in memory; BLOCK_OUTPUTS of a block; TAPS_Y,
// TAPS_X, STRIDE_Y, STRIDE_X, PADDING_Y, PADDING_X, DILATION_Y, DILATION_X; INPUT_GRAD; WARPS; GRANULE: bytes that are
// copied at once; BIAS, RESIDUAL, RELU: of the epilogue.
#include "patch.cuh"

struct Geometry {
  int slices, iterations;         // slices: blocks side by side that have all outputs
  int num_units, strips, bands;   // tiles; in a row, and in a column of an image
  int height, width;              // of first
  int out_height, out_width;
};

constexpr int CHANNELS_8 = (CHANNELS + 7) / 8, OUTPUTS_8 = (BLOCK_OUTPUTS + 7) / 8, TAPS = TAPS_Y * TAPS_X;
constexpr int PITCH = odd_pitch(CHANNELS);
constexpr int WEIGHT_UNITS = TAPS * OUTPUTS_8 * 8 * PITCH;  // of 16 bytes
constexpr int NUM_THREADS = 32 * WARPS;

// (tap, output, channel), zeros beyond the last output and channel.
__device__ __forceinline__ void load_weight(u16* to, const u16* __restrict__ weight, int first_output) {
  for (int e = threadIdx.x; e < TAPS * OUTPUTS_8 * 8 * CHANNELS_8 * 8; e += NUM_THREADS) {
    const int c = e % (CHANNELS_8 * 8), rest = e / (CHANNELS_8 * 8);
    const int k = rest % (OUTPUTS_8 * 8), tap = rest / (OUTPUTS_8 * 8), output = first_output + k;
    const int from = INPUT_GRAD ? (c * TAPS + TAPS - 1 - tap) * OUTPUTS + output : (output * TAPS + tap) * CHANNELS + c;
    u16 value = 0;
    if (c < CHANNELS && k < BLOCK_OUTPUTS && output < OUTPUTS) value = __ldg(weight + from);
    to[(tap * OUTPUTS_8 * 8 + k) * (PITCH * 8) + c] = value;
  }
}

extern "C" __global__ void __launch_bounds__(NUM_THREADS)
    patch_forward(const char* __restrict__ first, const u16* __restrict__ weight, char* __restrict__ out,
                  const char* __restrict__ bias, const char* __restrict__ residual, const Geometry g) {
  uint4* const pixels = patch + WEIGHT_UNITS;
  const int block = blockIdx.x / g.slices, first_output = (blockIdx.x - block * g.slices) * BLOCK_OUTPUTS;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // Where this lane points to: channels 0 - 7 of eight pixels and of those below, then channels 8 - 15 of both; channels
  // 0 - 7 of eight outputs, then 8 - 15.
  const uint4* const my_pixels =
      pixels + (lane / 8 % 2 * STRIDE_Y * PATCH_X + lane % 8 * STRIDE_X) * PITCH + lane / 16;
  const uint4* const my_weight = patch + lane % 8 * PITCH + lane / 8 % 2;
  follow();
  load_weight(reinterpret_cast<u16*>(patch), weight, first_output);
#pragma unroll 1
  for (int iteration = 0; iteration < g.iterations; ++iteration) {
    const int unit = block * g.iterations + iteration;
    if (unit >= g.num_units) break;
    const auto [image, row, column] = tile_at(unit, g.strips, g.bands);
    if (iteration > 0) __syncthreads();  // the tile before this one is read
    copy_pixels<PATCH_Y, PATCH_X, PITCH, CHANNELS_8 * 8, CHANNELS, GRANULE, NUM_THREADS>(
        pixels, first, image, row * STRIDE_Y - PADDING_Y, column * STRIDE_X - PADDING_X, g.height, g.width, 0);
    wait_for_copies();
    __syncthreads();
#pragma unroll 1
    for (int turn = 0; turn < CHUNKS / (WARPS * CHUNKS_AT_ONCE); ++turn) {
      const int chunk = (turn * WARPS + warp) * CHUNKS_AT_ONCE;
      float sums[CHUNKS_AT_ONCE * OUTPUTS_8][4];
#pragma unroll
      for (int i = 0; i < CHUNKS_AT_ONCE * OUTPUTS_8 * 4; ++i) sums[i / 4][i % 4] = 0.f;
      int places[CHUNKS_AT_ONCE];
#pragma unroll
      for (int i = 0; i < CHUNKS_AT_ONCE; ++i) {
        const int y = (chunk + i) / CHUNKS_X * 2, x = (chunk + i) % CHUNKS_X * 8;
        places[i] = (y * STRIDE_Y * PATCH_X + x * STRIDE_X) * PITCH;
      }
#pragma unroll TAPS_X
      for (int tap = 0; tap < TAPS; ++tap) {
        const int at = (tap / TAPS_X * DILATION_Y * PATCH_X + tap % TAPS_X * DILATION_X) * PITCH;
#pragma unroll
        for (int c = 0; c < CHANNELS_8; c += 2) {
          u32 left[CHUNKS_AT_ONCE][4];
#pragma unroll
          for (int i = 0; i < CHUNKS_AT_ONCE; ++i) load_matrices(left[i], my_pixels + places[i] + at + c);
#pragma unroll
          for (int n = 0; n < OUTPUTS_8; ++n) {
            u32 right[2];
            load_matrices(right, my_weight + (tap * OUTPUTS_8 + n) * 8 * PITCH + c);
#pragma unroll
            for (int i = 0; i < CHUNKS_AT_ONCE; ++i) {
              float(&mine)[4] = sums[i * OUTPUTS_8 + n];
              if (c + 1 < CHANNELS_8)
                multiply_16<DTYPE == 2>(mine, left[i][0], left[i][1], left[i][2], left[i][3], right[0], right[1]);
              else
                multiply_8<DTYPE == 2>(mine, left[i][0], left[i][1], right[0]);
            }
          }
        }
      }
#pragma unroll
      for (int i = 0; i < CHUNKS_AT_ONCE; ++i)
#pragma unroll
        for (int below = 0; below < 2; ++below) {
          const int y = row + (chunk + i) / CHUNKS_X * 2 + below, x = column + (chunk + i) % CHUNKS_X * 8 + lane / 4;
          if (y >= g.out_height || x >= g.out_width) continue;
          const long long pixel = ((long long)image * g.out_height + y) * g.out_width + x;
#pragma unroll
          for (int n = 0; n < OUTPUTS_8; ++n) {
            const int k = n * 8 + lane % 4 * 2, output = first_output + k;
            if (k >= BLOCK_OUTPUTS || output >= OUTPUTS) continue;  // both are even
            const long long place = (pixel * OUTPUTS + output) * 2;
            u32 added = 0, more = 0;
            if (BIAS) added = __ldg(reinterpret_cast<const u32*>(bias + output * 2));
            if (RESIDUAL) more = __ldg(reinterpret_cast<const u32*>(residual + place));
            float results[2];
#pragma unroll
            for (int j = 0; j < 2; ++j) {
              float result = sums[i * OUTPUTS_8 + n][2 * below + j];
              if (BIAS) result += half_of<DTYPE == 2>(added, j);
              if (RESIDUAL) result += half_of<DTYPE == 2>(more, j);
              results[j] = RELU && result < 0.f ? 0.f : result;  // NaN stays NaN
            }
            *reinterpret_cast<u32*>(out + place) = rounded_pair<DTYPE == 2>(results[0], results[1]);
          }
        }
    }
  }
}
