// The gradients of a 1x1 convolution of few pixels, as products of matrices, summed over rows of the second one:
//
//   input's gradient   out (pixel, channel) = sum over outputs of grad (pixel, output) * weight (output, channel)
//                                             + bias + residual
//   weight's gradient  out (output, channel) = sum over pixels of grad (pixel, output) * input (pixel, channel)
//
// It is bound by latency. LANES neighbouring threads have neighbouring channels, in vectors of VECTOR, and load the same
// ROWS numbers of grad. SPLITS groups of threads share a sum, in turns TERMS at a time, and a thread loads AT_ONCE times
// as many before it multiplies. It has ROWS x COLUMNS sums; DOWN groups of lanes, one below the other, have a block's
// tile.
//
// Macros: those of results.cuh; WEIGHT_GRAD; CHANNELS, OUTPUTS; LANES, DOWN, SPLITS; TERMS; VECTOR; GRAD_VECTOR: outputs
// of a pixel that are loaded at once; AT_ONCE; ONE_TURN: 1 if that is all that a thread loads.
#include "results.cuh"

struct Geometry {
  int num_pixels;
};

constexpr int NUM_THREADS = LANES * DOWN * SPLITS, TILE_ROWS = ROWS * DOWN, TILE_COLUMNS = COLUMNS * LANES;
constexpr int SLICES = (CHANNELS + TILE_COLUMNS - 1) / TILE_COLUMNS;  // blocks side by side that have all channels
constexpr int PART = LANES * DOWN;                            // threads that have a part of the sums
constexpr int PARTS = PART < 32 ? NUM_THREADS / 32 : SPLITS;  // in shared memory
constexpr int VECTORS = COLUMNS / VECTOR;
// Of grad: a pixel's outputs are rows of the weight's gradient, terms of the input's.
constexpr int LINES = WEIGHT_GRAD ? TERMS : ROWS, IN_LINE = WEIGHT_GRAD ? ROWS : TERMS;
constexpr int GRAD_VECTORS = IN_LINE / GRAD_VECTOR, GRAD_ROWS = WEIGHT_GRAD ? GRAD_VECTORS : ROWS;
constexpr int TERMS_AT_ONCE = WEIGHT_GRAD ? 1 : GRAD_VECTOR;  // all of them are there, or none
constexpr int TURNS = WEIGHT_GRAD ? ONE_TURN : (OUTPUTS + SPLITS * TERMS * AT_ONCE - 1) / (SPLITS * TERMS * AT_ONCE);

// One block of a multiprocessor, at least: so the compiler need not spare registers, and keeps loads before products.
extern "C" __global__ void __launch_bounds__(NUM_THREADS, 1)
    skinny_gemm_gradient(const char* __restrict__ grad, const char* __restrict__ second, char* __restrict__ out,
                         const char* __restrict__ bias, const char* __restrict__ residual, const Geometry g) {
  const int lane = threadIdx.x % LANES, down = threadIdx.x / LANES % DOWN * ROWS, split = threadIdx.x / PART;
  const int first_row = blockIdx.x / SLICES * TILE_ROWS, first_column = blockIdx.x % SLICES * TILE_COLUMNS;
  const int num_rows = WEIGHT_GRAD ? OUTPUTS : g.num_pixels, num_terms = WEIGHT_GRAD ? g.num_pixels : OUTPUTS;
  const int num_turns = (num_terms + SPLITS * TERMS * AT_ONCE - 1) / (SPLITS * TERMS * AT_ONCE);
  const char *grads[GRAD_ROWS], *seconds[VECTORS];  // beyond the last row and column, the last is read again
#pragma unroll
  for (int i = 0; i < GRAD_ROWS; ++i) {
    const int row = first_row + down + i * (WEIGHT_GRAD ? GRAD_VECTOR : 1);
    const int last = num_rows - (WEIGHT_GRAD ? GRAD_VECTOR : 1);
    const int kept = WEIGHT_GRAD && OUTPUTS % TILE_ROWS == 0 ? row : min(row, last);
    const int output = WEIGHT_GRAD ? kept : split * TERMS, pixel = WEIGHT_GRAD ? split * TERMS : kept;
    grads[i] = grad + ((long long)pixel * OUTPUTS + output) * ELEMENT;
  }
#pragma unroll
  for (int j = 0; j < VECTORS; ++j) {
    const int column = first_column + (j * LANES + lane) * VECTOR;
    const int channel = CHANNELS % TILE_COLUMNS == 0 ? column : min(column, CHANNELS - VECTOR);
    seconds[j] = second + ((long long)(split * TERMS) * CHANNELS + channel) * ELEMENT;
  }
  float sums[SUMS];
#pragma unroll
  for (int i = 0; i < SUMS; ++i) sums[i] = 0.f;
  follow();
  Results<TILE_ROWS, TILE_COLUMNS, CHANNELS, PARTS, NUM_THREADS> results(first_row, first_column, num_rows, bias,
                                                                       residual);
#pragma unroll 1
  for (int turn = 0; turn < (TURNS > 0 ? TURNS : num_turns); ++turn) {
    Channels<GRAD_VECTOR> left[AT_ONCE][LINES][GRAD_VECTORS];
    Channels<VECTOR> right[AT_ONCE][TERMS][VECTORS];
#pragma unroll
    for (int n = 0; n < AT_ONCE; ++n) {
      const int before = (turn * AT_ONCE + n) * SPLITS * TERMS, term = before + split * TERMS;
#pragma unroll
      for (int line = 0; line < LINES; ++line)
#pragma unroll
        for (int i = 0; i < GRAD_VECTORS; ++i) {
          const int place = WEIGHT_GRAD ? line : i * GRAD_VECTOR;  // among the terms
          const long long distance = (long long)(before + place) * (WEIGHT_GRAD ? OUTPUTS * ELEMENT : ELEMENT);
          left[n][line][i].load(grads[WEIGHT_GRAD ? i : line] + distance, term + place < num_terms);
        }
#pragma unroll
      for (int t = 0; t < TERMS; ++t)
#pragma unroll
        for (int j = 0; j < VECTORS; ++j)
          right[n][t][j].load(seconds[j] + (long long)(before + t) * (CHANNELS * ELEMENT),
                              term + t / TERMS_AT_ONCE * TERMS_AT_ONCE < num_terms);
    }
#pragma unroll
    for (int n = 0; n < AT_ONCE; ++n)
#pragma unroll
      for (int t = 0; t < TERMS; ++t)
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
          const int line = WEIGHT_GRAD ? t : i, place = WEIGHT_GRAD ? i : t;
          const float factor = left[n][line][place / GRAD_VECTOR][place % GRAD_VECTOR];
#pragma unroll
          for (int j = 0; j < COLUMNS; ++j)
            sums[i * COLUMNS + j] = fmaf(factor, right[n][t][j / VECTOR][j % VECTOR], sums[i * COLUMNS + j]);
        }
  }
  const int part = PART < 32 ? threadIdx.x / 32 : split;
  results.template put<PART, 32>(sums, part, down, [&](int j) {
    return (j / VECTOR * LANES + lane) * VECTOR + j % VECTOR;
  });
  __syncthreads();
  results.write(out);
}
