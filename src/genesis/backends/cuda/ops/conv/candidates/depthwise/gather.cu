// Depthwise convolution of images whose channels lie side by side: the forward and the input's gradient.
//
//   out (pixel, channel) = act(sum over taps of weight (channel, tap) * first (pixel at the tap, channel) + bias
//                              + residual)
//
// A thread has a few neighbouring channels, and of them a tile of TILE_Y x TILE_X results at a time, whose sums are in its
// registers. It goes down the rows that the tile's taps meet: a row's pixels are loaded once, AHEAD rows before they are
// needed, and take part in all results that meet them. Where that is, is known when the kernel is compiled, for strides
// and dilations too. The weight's taps of a block's channels are in shared memory as float32.
//
// A block is `lanes` threads side by side over the channels, times `workers` tiles: neighbours in a row, then the next
// band of rows, so that what tiles share is in the cache. It does that `iterations` times.
//
// Macros: DTYPE; INPUT_GRAD: first is the result's gradient, out the input's; VECTOR input channels of a thread, each with
// MULTIPLIER of the SPLITS * MULTIPLIER outputs that it has (VECTOR is 1 if SPLITS is not); TILE_Y, TILE_X, TAPS_Y,
// TAPS_X, STRIDE_Y, STRIDE_X, DILATION_Y, DILATION_X, PADDING_Y, PADDING_X; AHEAD; THREADS at most; CHANNELS of first, OUT_CHANNELS
// of the result; BIAS, RESIDUAL, RELU: of the epilogue; STATISTICS of the result's channels, too: tiles are whole then.
#include "depthwise.cuh"

struct Geometry {
  int lanes, workers, slices, iterations;  // slices: blocks side by side that have all channels
  int num_groups, num_units, strips, bands;  // groups of channels, tiles; tiles in a row, rows of tiles in an image
  int height, width;                         // of first
  int out_height, out_width;
  int num_weights;                           // the weight's channels
};

constexpr bool TRANSPOSED = INPUT_GRAD;
constexpr int OUTPUTS = VECTOR * MULTIPLIER;           // of a thread, without its splits
constexpr int IN = TRANSPOSED ? OUTPUTS : VECTOR;      // channels of a pixel of first
constexpr int OUT = TRANSPOSED ? VECTOR : OUTPUTS;     // channels of a result
constexpr int ROUNDS = TRANSPOSED ? SPLITS : 1;        // over a thread's share of the weight
constexpr int WEIGHTS = OUTPUTS * ROUNDS;              // channels of that
constexpr int TAPS = TAPS_Y * TAPS_X;
using Rows = Axis<TILE_Y, TAPS_Y, STRIDE_Y, DILATION_Y, PADDING_Y, TRANSPOSED>;
using Columns = Axis<TILE_X, TAPS_X, STRIDE_X, DILATION_X, PADDING_X, TRANSPOSED>;
constexpr int NUM_ROWS = Rows::count(), NUM_COLUMNS = Columns::count();

extern __shared__ __align__(16) float memory[];

struct Tile {
  int image, row, column;

  __device__ __forceinline__ Tile(unsigned unit, const Geometry& g) {
    const unsigned rest = unit / g.strips;
    column = (unit - rest * g.strips) * TILE_X;
    image = rest / g.bands;
    row = (rest - image * g.bands) * TILE_Y;
  }
};

// Of one round: sums += the taps' products.
__device__ __forceinline__ void add_products(float (&sums)[TILE_Y][TILE_X][OUT], const Tile& tile, const char* first,
                                             const float* weights, int pitch, const Geometry& g) {
  const int top = Rows::begin(tile.row), left = Columns::begin(tile.column);
  const char* corner = first + (((long long)tile.image * g.height + top) * g.width + left) * (CHANNELS * ELEMENT);
  const long long row_bytes = (long long)g.width * (CHANNELS * ELEMENT);
  const u32 columns_inside = Columns::inside(left, g.width);
  Channels<IN> rows[AHEAD + 1][Columns::SPAN];

  auto load = [&](auto index) {
    constexpr int n = decltype(index)::value, y = Rows::used(n);
    const bool row_inside = (unsigned)(top + y) < (unsigned)g.height;
    const u32 inside = row_inside ? columns_inside : 0;
    const char* row = corner + y * row_bytes;
#pragma unroll
    for (int k = 0; k < NUM_COLUMNS; ++k) {
      const int x = Columns::used(k);
      rows[n % (AHEAD + 1)][x].load(row + x * (CHANNELS * ELEMENT),
                                   Columns::is_inside(inside, k, left, row_inside ? g.width : 0));
    }
  };

  unrolled<(AHEAD < NUM_ROWS ? AHEAD : NUM_ROWS)>(load);
  unrolled<NUM_ROWS>([&](auto index) {
    constexpr int n = decltype(index)::value, y = Rows::used(n);
    if constexpr (n + AHEAD < NUM_ROWS) load(Number<n + AHEAD>());
    const Channels<IN>(&row)[Columns::SPAN] = rows[n % (AHEAD + 1)];
    float values[Columns::SPAN][IN];
#pragma unroll
    for (int x = 0; x < Columns::SPAN; ++x)
#pragma unroll
      for (int c = 0; c < IN; ++c)
        if (Columns::is_used(x)) values[x][c] = row[x][c];
#pragma unroll
    for (int i = 0; i < TILE_Y; ++i)
#pragma unroll
      for (int r = 0; r < TAPS_Y; ++r) {
        if (!Rows::meets(i, r) || Rows::place(i, r) != y) continue;
#pragma unroll
        for (int s = 0; s < TAPS_X; ++s) {
          float weight[OUTPUTS];
          read_shared<OUTPUTS>(weight, weights + (r * TAPS_X + s) * pitch);
#pragma unroll
          for (int j = 0; j < TILE_X; ++j) {
            if (!Columns::meets(j, s)) continue;
#pragma unroll
            for (int k = 0; k < OUTPUTS; ++k) {
              const int result = TRANSPOSED ? k / MULTIPLIER : k, value = TRANSPOSED ? k : k / MULTIPLIER;
              sums[i][j][result] = fmaf(values[Columns::place(j, s)][value], weight[k], sums[i][j][result]);
            }
          }
        }
      }
  });
}

#if STATISTICS
// Of a thread's channels: sums of differences from its first result, which are small and exact where all are alike.
struct Statistics {
  int count = 0;
  float pivot[OUT], total[OUT], squares[OUT];

  __device__ __forceinline__ void add(const Channels<OUT>& stored) {
    const bool is_first = count++ == 0;
#pragma unroll
    for (int k = 0; k < OUT; ++k) {
      if (is_first) pivot[k] = stored[k], total[k] = squares[k] = 0.f;
      const float difference = stored[k] - pivot[k];
      total[k] += difference;
      squares[k] = fmaf(difference, difference, squares[k]);
    }
  }

  // One part of each channel: the workers' are merged in their order (Chan, Golub & LeVeque 1979).
  __device__ __forceinline__ void write(float* partial, int part, int num_parts, int first_group, const Geometry& g) {
    const int num_threads = g.lanes * g.workers, thread = threadIdx.x;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < OUT; ++k) {
      memory[(3 * k) * num_threads + thread] = pivot[k];
      memory[(3 * k + 1) * num_threads + thread] = total[k];
      memory[(3 * k + 2) * num_threads + thread] = squares[k];
    }
    memory[3 * OUT * num_threads + thread] = (float)count;
    __syncthreads();
    const long long plane = (long long)num_parts * OUT_CHANNELS;
    for (int o = thread; o < g.lanes * OUT; o += num_threads) {
      const int lane = o / OUT, k = o % OUT;
      if (first_group + lane >= g.num_groups) break;
      const float* mine = memory + 3 * k * num_threads + lane;
      const float origin = mine[0];
      float number = 0.f, mean = 0.f, deviations = 0.f;
      for (int w = 0; w < g.workers; ++w) {
        const float more = memory[3 * OUT * num_threads + w * g.lanes + lane];
        if (more == 0.f) break;
        const float* one = mine + w * g.lanes;
        const float shift = one[num_threads] / more;
        const float delta = (one[0] - origin) + shift - mean;
        const float own = one[2 * num_threads] - one[num_threads] * shift;
        deviations += own + delta * delta * (number * more / (number + more));
        number += more;
        mean += delta * (more / number);
      }
      float* to = partial + (long long)part * OUT_CHANNELS + (first_group + lane) * OUT + k;
      to[0] = origin, to[plane] = mean, to[2 * plane] = deviations;
    }
  }
};
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
    depthwise(const char* __restrict__ first, const char* __restrict__ weight, char* __restrict__ out,
              const char* __restrict__ bias, const char* __restrict__ residual, float* __restrict__ partial,
              const Geometry g) {
  const int worker = threadIdx.x / g.lanes, lane = threadIdx.x - worker * g.lanes;
  const int part = blockIdx.x / g.slices, first_group = (blockIdx.x - part * g.slices) * g.lanes;
  const int group = first_group + lane, pitch = g.lanes * WEIGHTS;
  follow();
  {
    const int from = first_group * WEIGHTS, left = g.num_weights - from;
    const int channels = left < pitch ? left : pitch;
    for (int e = threadIdx.x; e < channels * TAPS; e += g.lanes * g.workers) {
      const int k = e / TAPS;
      memory[(e - k * TAPS) * pitch + k] = value_at(weight, (long long)from * TAPS + e);
    }
  }
  __syncthreads();
#if STATISTICS
  Statistics statistics;
#endif
  if (group < g.num_groups) {
    const int channel = group * OUT;
    float added[OUT];
#pragma unroll
    for (int k = 0; k < OUT; ++k) added[k] = BIAS ? value_at(bias, channel + k) : 0.f;
    for (int iteration = 0; iteration < g.iterations; ++iteration) {
      const int unit = (part * g.iterations + iteration) * g.workers + worker;
      if (unit >= g.num_units) break;
      const Tile tile(unit, g);
      float sums[TILE_Y][TILE_X][OUT];
#pragma unroll
      for (int i = 0; i < TILE_Y * TILE_X * OUT; ++i) sums[i / (TILE_X * OUT)][i / OUT % TILE_X][i % OUT] = 0.f;
#pragma unroll 1
      for (int round = 0; round < ROUNDS; ++round) {
        const int source = TRANSPOSED ? (group * ROUNDS + round) * IN : SPLITS > 1 ? group / SPLITS : group * IN;
        const float* weights = memory + lane * WEIGHTS + round * OUTPUTS;
        add_products(sums, tile, first + (long long)source * ELEMENT, weights, pitch, g);
      }
      const long long base = ((long long)tile.image * g.out_height + tile.row) * g.out_width + tile.column;
#pragma unroll
      for (int i = 0; i < TILE_Y; ++i)
#pragma unroll
        for (int j = 0; j < TILE_X; ++j) {
          if (tile.row + i >= g.out_height || tile.column + j >= g.out_width) continue;
          const long long place = ((base + i * g.out_width + j) * OUT_CHANNELS + channel) * ELEMENT;
          float results[OUT];
          Channels<OUT> stored;
          if (RESIDUAL) stored.load(residual + place, true);
#pragma unroll
          for (int k = 0; k < OUT; ++k) {
            float result = sums[i][j][k];
            if (BIAS) result += added[k];
            if (RESIDUAL) result += stored[k];
            results[k] = RELU && result < 0.f ? 0.f : result;  // NaN stays NaN
          }
          stored.round(results);
          stored.store(out + place);
#if STATISTICS
          statistics.add(stored);
#endif
        }
    }
  }
#if STATISTICS
  statistics.write(partial, part, gridDim.x / g.slices, first_group, g);
#endif
}
