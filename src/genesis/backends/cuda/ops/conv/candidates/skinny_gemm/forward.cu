// A 1x1 convolution of few pixels, as a product of matrices whose terms lie side by side in both:
//
//   out (pixel, output) = act(sum over channels of first (pixel, channel) * weight (output, channel) + bias + residual)
//
// It is bound by latency. So LANES neighbouring threads share a sum, a vector of VECTOR channels each, and SPLITS such
// groups take further vectors: a thread loads few of them, AT_ONCE of each row before it multiplies. It has ROWS x
// COLUMNS sums; DOWN x ACROSS groups of lanes side by side have a block's tile.
//
// Macros: those of results.cuh; CHANNELS, OUTPUTS; LANES, DOWN, ACROSS, SPLITS; VECTOR; AT_ONCE.
#include "results.cuh"

struct Geometry {
  int num_pixels;
};

constexpr int NUM_THREADS = LANES * DOWN * ACROSS * SPLITS, TILE_ROWS = ROWS * DOWN, TILE_COLUMNS = COLUMNS * ACROSS;
constexpr int SLICES = (OUTPUTS + TILE_COLUMNS - 1) / TILE_COLUMNS;  // blocks side by side that have all outputs
constexpr int VECTORS = CHANNELS / VECTOR, STEP = LANES * SPLITS, STEPS = (VECTORS + STEP - 1) / STEP;
constexpr int VECTOR_BYTES = VECTOR * ELEMENT, ROW_BYTES = CHANNELS * ELEMENT;

// One block of a multiprocessor, at least: so the compiler need not spare registers, and keeps loads before products.
extern "C" __global__ void __launch_bounds__(NUM_THREADS, 1)
    skinny_gemm_forward(const char* __restrict__ first, const char* __restrict__ weight, char* __restrict__ out,
                        const char* __restrict__ bias, const char* __restrict__ residual, const Geometry g) {
  const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
  const int across = group % ACROSS * COLUMNS, down = group / ACROSS % DOWN * ROWS, split = group / (ACROSS * DOWN);
  const int first_row = blockIdx.x / SLICES * TILE_ROWS, first_column = blockIdx.x % SLICES * TILE_COLUMNS;
  const int begin = split * LANES + lane;
  const char *pixels[ROWS], *weights[COLUMNS];
#pragma unroll
  for (int i = 0; i < ROWS; ++i)  // beyond the last row it is read again
    pixels[i] = first + (long long)min(first_row + down + i, g.num_pixels - 1) * ROW_BYTES + begin * VECTOR_BYTES;
#pragma unroll
  for (int j = 0; j < COLUMNS; ++j) {
    const int output = first_column + across + j, last = OUTPUTS - 1;
    const int row = OUTPUTS % TILE_COLUMNS == 0 ? output : min(output, last);
    weights[j] = weight + (long long)row * ROW_BYTES + begin * VECTOR_BYTES;
  }
  float sums[SUMS];
#pragma unroll
  for (int i = 0; i < SUMS; ++i) sums[i] = 0.f;
  follow();
  Results<TILE_ROWS, TILE_COLUMNS, OUTPUTS, SPLITS, NUM_THREADS> results(first_row, first_column, g.num_pixels, bias,
                                                                       residual);
#pragma unroll 1
  for (int step = 0; step < STEPS; step += AT_ONCE) {
    Channels<VECTOR> left[AT_ONCE][ROWS], right[AT_ONCE][COLUMNS];
#pragma unroll
    for (int n = 0; n < AT_ONCE; ++n) {
      const int place = (step + n) * STEP;
      const bool inside = (STEPS <= AT_ONCE && (n + 1) * STEP <= VECTORS) || place + begin < VECTORS;
#pragma unroll
      for (int i = 0; i < ROWS; ++i) left[n][i].load(pixels[i] + place * VECTOR_BYTES, inside);
#pragma unroll
      for (int j = 0; j < COLUMNS; ++j) right[n][j].load(weights[j] + place * VECTOR_BYTES, inside);
    }
#pragma unroll
    for (int n = 0; n < AT_ONCE; ++n)
#pragma unroll
      for (int c = 0; c < VECTOR; ++c)
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
#pragma unroll
          for (int j = 0; j < COLUMNS; ++j)
            sums[i * COLUMNS + j] = fmaf(left[n][i][c], right[n][j][c], sums[i * COLUMNS + j]);
  }
  results.template put<1, LANES>(sums, split, down, [&](int j) { return across + j; });
  __syncthreads();
  results.write(out);
}
