// The weight's gradient of a depthwise convolution of images whose channels lie side by side:
//
//   out (channel, tap) = sum over pixels of grad (pixel, channel) * input (pixel at the tap, channel)
//
// A thread has a few neighbouring channels and TAPS_Y of the kernel's KERNEL_Y rows of taps, whose sums are in its
// registers all the time. It takes one tile of TILE_Y x TILE_X pixels of the gradient after the other, and goes down the
// rows of the input that they meet: what is loaded of them takes part in all taps. Then the sums of the threads that have
// the same channels are added in shared memory, in a fixed order, and written: a part of the result, float32.
//
// Macros: as of gather.cu; TAPS_Y of a thread, KERNEL_Y in all.
#include "depthwise.cuh"

struct Geometry {
  int lanes, workers, slices, iterations;    // slices: blocks side by side that have all channels
  int num_groups, num_units, strips, bands;  // groups of channels, tiles; tiles in a row, rows of tiles in an image
  int height, width;                         // of the input
  int out_height, out_width;                 // of the gradient
  int tap_groups;
};

constexpr int OUTPUTS = VECTOR * MULTIPLIER;
using Rows = Axis<TILE_Y, TAPS_Y, STRIDE_Y, DILATION_Y, PADDING_Y, false>;
using Columns = Axis<TILE_X, TAPS_X, STRIDE_X, DILATION_X, PADDING_X, false>;
constexpr int NUM_ROWS = Rows::count(), NUM_COLUMNS = Columns::count();

extern __shared__ __align__(16) float memory[];

__device__ __forceinline__ void add_tile(float (&sums)[TAPS_Y][TAPS_X][OUTPUTS], int unit, const char* grad,
                                         const char* input, int first_tap, const Geometry& g) {
  const unsigned rest = (unsigned)unit / g.strips;
  const int column = (unit - rest * g.strips) * TILE_X;
  const int image = rest / g.bands, row = (rest - image * g.bands) * TILE_Y;
  const int top = Rows::begin(row) + first_tap * DILATION_Y, left = Columns::begin(column);
  const char* corner =
      input + (((long long)image * g.height + top) * g.width + left) * (CHANNELS * ELEMENT);
  const long long row_bytes = (long long)g.width * (CHANNELS * ELEMENT);
  const u32 columns_inside = Columns::inside(left, g.width);
  Channels<VECTOR> rows[AHEAD + 1][Columns::SPAN];

  auto load = [&](auto index) {
    constexpr int n = decltype(index)::value, y = Rows::used(n);
    const bool row_inside = (unsigned)(top + y) < (unsigned)g.height;
    const u32 inside = row_inside ? columns_inside : 0;
    const char* line = corner + y * row_bytes;
#pragma unroll
    for (int k = 0; k < NUM_COLUMNS; ++k) {
      const int x = Columns::used(k);
      rows[n % (AHEAD + 1)][x].load(line + x * (CHANNELS * ELEMENT),
                                   Columns::is_inside(inside, k, left, row_inside ? g.width : 0));
    }
  };

  unrolled<(AHEAD < NUM_ROWS ? AHEAD : NUM_ROWS)>(load);
  Channels<OUTPUTS> grads[TILE_Y][TILE_X];
  const long long base = ((long long)image * g.out_height + row) * g.out_width + column;
#pragma unroll
  for (int i = 0; i < TILE_Y; ++i) {
    const char* line = grad + (base + i * g.out_width) * (OUT_CHANNELS * ELEMENT);
#pragma unroll
    for (int j = 0; j < TILE_X; ++j) {
      const bool inside = row + i < g.out_height && column + j < g.out_width;
      grads[i][j].load(line + j * (OUT_CHANNELS * ELEMENT), inside);
    }
  }
  unrolled<NUM_ROWS>([&](auto index) {
    constexpr int n = decltype(index)::value, y = Rows::used(n);
    if constexpr (n + AHEAD < NUM_ROWS) load(Number<n + AHEAD>());
    const Channels<VECTOR>(&line)[Columns::SPAN] = rows[n % (AHEAD + 1)];
    float values[Columns::SPAN][VECTOR];
#pragma unroll
    for (int x = 0; x < Columns::SPAN; ++x)
#pragma unroll
      for (int c = 0; c < VECTOR; ++c)
        if (Columns::is_used(x)) values[x][c] = line[x][c];
#pragma unroll
    for (int i = 0; i < TILE_Y; ++i)
#pragma unroll
      for (int r = 0; r < TAPS_Y; ++r) {
        if (Rows::place(i, r) != y) continue;
#pragma unroll
        for (int j = 0; j < TILE_X; ++j)
#pragma unroll
          for (int k = 0; k < OUTPUTS; ++k) {
            const float factor = grads[i][j][k];
#pragma unroll
            for (int s = 0; s < TAPS_X; ++s)
              sums[r][s][k] = fmaf(factor, values[Columns::place(j, s)][k / MULTIPLIER], sums[r][s][k]);
          }
      }
  });
}

extern "C" __global__ void __launch_bounds__(THREADS)
    depthwise_weight_grad(const char* __restrict__ grad, const char* __restrict__ input, float* __restrict__ partial,
                          const Geometry g) {
  const int num_threads = g.lanes * g.workers;
  const int worker = threadIdx.x / g.lanes, lane = threadIdx.x - worker * g.lanes;
  const int rest = blockIdx.x / g.slices, first_group = (blockIdx.x - rest * g.slices) * g.lanes;
  const int part = rest / g.tap_groups, first_tap = (rest - part * g.tap_groups) * TAPS_Y;
  const int group = first_group + lane;
  follow_and_hold();
  float sums[TAPS_Y][TAPS_X][OUTPUTS];
#pragma unroll
  for (int i = 0; i < TAPS_Y * TAPS_X * OUTPUTS; ++i) sums[i / (TAPS_X * OUTPUTS)][i / OUTPUTS % TAPS_X][i % OUTPUTS] = 0;
  if (group < g.num_groups) {
    const char* grads = grad + (long long)group * OUTPUTS * ELEMENT;
    const char* inputs = input + (long long)(SPLITS > 1 ? group / SPLITS : group * VECTOR) * ELEMENT;
    for (int iteration = 0; iteration < g.iterations; ++iteration) {
      const int unit = (part * g.iterations + iteration) * g.workers + worker;
      if (unit >= g.num_units) break;
      add_tile(sums, unit, grads, inputs, first_tap, g);
    }
  }
  let_next_begin();
  // The threads' sums, a row of taps at a time; their totals as they lie in the weight, (channel, tap).
  float* totals = memory + TAPS_X * OUTPUTS * num_threads;
  constexpr int MINE = TAPS_Y * TAPS_X;
  unrolled<TAPS_Y>([&](auto index) {
    constexpr int r = decltype(index)::value;
    __syncthreads();
#pragma unroll
    for (int s = 0; s < TAPS_X; ++s)
#pragma unroll
      for (int k = 0; k < OUTPUTS; ++k) memory[(s * OUTPUTS + k) * num_threads + threadIdx.x] = sums[r][s][k];
    __syncthreads();
    for (int o = threadIdx.x; o < g.lanes * TAPS_X * OUTPUTS; o += num_threads) {
      const int element = o / g.lanes, which = o - element * g.lanes;
      float total = 0.f;
      for (int w = 0; w < g.workers; ++w) total += memory[element * num_threads + w * g.lanes + which];
      totals[(which * OUTPUTS + element % OUTPUTS) * MINE + r * TAPS_X + element / OUTPUTS] = total;
    }
  });
  __syncthreads();
  const int left = OUT_CHANNELS - first_group * OUTPUTS;
  const int channels = left < g.lanes * OUTPUTS ? left : g.lanes * OUTPUTS;
  const int rows = KERNEL_Y - first_tap < TAPS_Y ? KERNEL_Y - first_tap : TAPS_Y;
  for (int e = threadIdx.x; e < channels * MINE; e += num_threads) {
    const int k = e / MINE, tap = e - k * MINE;
    if (tap >= rows * TAPS_X) continue;
    const long long channel = (long long)part * OUT_CHANNELS + first_group * OUTPUTS + k;
    partial[(channel * KERNEL_Y + first_tap) * TAPS_X + tap] = totals[e];
  }
}
