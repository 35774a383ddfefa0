// A 1x1 convolution in 16 bits, or its input's gradient, on Hopper: as forward.cu, for larger weights, by warpgroups.
//
//   out (pixel, result) = act(sum over terms of first (pixel, term) * weight + bias)
//
// A block keeps COLUMNS results' part of the weight in shared memory, as warpgroups' products take it; the first products
// run while the rest of it is on its way. GROUPS warpgroups have tiles of up to 64 pixels in turns, of which the next
// STAGES are on their way. A warpgroup takes a tile into registers, all of it: so another one can come to its place while
// the products run. The results are put together in one of OUTS places, and written as one piece.
//
// Macros: DTYPE 1 float16 | 2 bfloat16; DEPTH, RESULTS: channels of `first` and of the result; COLUMNS (64 | 128 | 192 |
// 256), a divisor of RESULTS if less; TRANSPOSED_WEIGHT (0 | 1): (term, result); GROUPS (1 | 2), STAGES (no less than
// GROUPS), OUTS (1, or GROUPS); BIAS, RELU: of the epilogue.
#if DTYPE == 2
#define KIND "bf16"
#else
#define KIND "f16"
#endif
#define TF32 0
#include "../instructions.cuh"
#include "../overlap.cuh"
#include "../wgmma/copy_engine.cuh"
#include "../wgmma/wgmma.cuh"

struct Geometry {
  int num_pixels, tile_pixels;  // of a tile: up to 64, a multiple of eight
};

extern __shared__ __align__(16) float memory[];

constexpr int WIDTH = RESULTS < COLUMNS ? RESULTS : COLUMNS, SLICES = RESULTS / WIDTH;  // of a block; of all results
constexpr int STEPS = (DEPTH + 15) / 16, PARTS = (STEPS + 3) / 4;  // of 16 terms; of 64
constexpr int PIXELS = 64, NUM_THREADS = 128 * GROUPS;
constexpr int ROWS = TRANSPOSED_WEIGHT ? 16 * STEPS : COLUMNS;  // of the weight as it lies in memory
constexpr int BLOCKS = TRANSPOSED_WEIGHT ? COLUMNS / 64 : (DEPTH + 63) / 64, BLOCK_BYTES = ROWS * 128;  // of 64 columns
constexpr int WEIGHT_BYTES = BLOCKS * BLOCK_BYTES, BIAS_BYTES = COLUMNS * 4;
constexpr int TILE_BYTES = PIXELS * 2 * DEPTH, OUT_BYTES = PIXELS * 2 * WIDTH;
constexpr int BARRIERS = STAGES % GROUPS == 0 ? STAGES : STAGES * GROUPS;  // one of which is always the same warpgroup's

// Rows of a product are SPREAD pixels apart, so that eight of them lie in different banks, also where pixels begin at odd
// addresses.
constexpr int ODD = (DEPTH | WIDTH) % 8, SPREAD = ODD % 2 ? 8 : ODD % 4 ? 4 : ODD ? 2 : 1;

// The pixel of row 8 half + g of a warp's 16.
__device__ __forceinline__ int pixel_of(int warp, int half, int g) {
  const int other = 2 * warp + half;
  return SPREAD * g + other % SPREAD + other / SPREAD * (8 * SPREAD);
}

// PIXELS pixels in shared memory: as they lie outside, but that the 16 bytes of a row's pixels, if they are whole ones,
// are turned, each pixel's further than the one's before.
template <int CHANNELS>
struct Tile {
  static constexpr int BYTES = CHANNELS * 2, VECTORS = BYTES / 16;
  static constexpr bool HAS_VECTORS = BYTES % 16 == 0;
  static constexpr int OF_PIXEL = HAS_VECTORS ? VECTORS : 1;

  __device__ __forceinline__ static int place(int pixel, int channel) {
    if (!HAS_VECTORS) return pixel * BYTES + channel * 2;
    const int turned = channel / 8 + pixel / SPREAD % 8 % OF_PIXEL;
    return pixel * BYTES + (turned < OF_PIXEL ? turned : turned - OF_PIXEL) * 16 + channel % 8 * 2;
  }

  // Where the i-th 16 bytes lie.
  __device__ __forceinline__ static int place(int i) {
    return HAS_VECTORS ? place(i / OF_PIXEL, i % OF_PIXEL * 8) : i * 16;
  }

  // So many pixels from `first` on, by a warpgroup. The last 16 bytes that have some are filled up with zeros.
  __device__ __forceinline__ static void copy(char* to, const char* __restrict__ from, int first, int num_pixels) {
    const char* const begin = from + (long long)first * BYTES;
    const int bytes = num_pixels * BYTES;
#pragma unroll 4
    for (int i = threadIdx.x % 128; i * 16 < bytes; i += 128)
      copy_up_to_16(to + place(i), begin + i * 16, min(bytes - i * 16, 16));
  }

  // And back; ROW: bytes from a pixel to the next.
  template <int ROW>
  __device__ __forceinline__ static void store(char* __restrict__ to, const char* from, int first, int num_pixels) {
    static_assert(HAS_VECTORS || ROW == BYTES, "pixels of odd channels lie side by side");
    char* const begin = to + (long long)first * ROW;
    const int bytes = num_pixels * BYTES;
#pragma unroll 4
    for (int i = threadIdx.x % 128; i < bytes / 16; i += 128)
      *reinterpret_cast<uint4*>(begin + i * 16 + i / OF_PIXEL * (HAS_VECTORS ? ROW - BYTES : 0)) =
        *reinterpret_cast<const uint4*>(from + place(i));
    const int last = bytes / 16 * 16 + threadIdx.x % 128 * 2;  // what is no whole vector
    if (last < bytes) *reinterpret_cast<u16*>(begin + last) = *reinterpret_cast<const u16*>(from + last);
  }

  __device__ __forceinline__ static u32 one(const char* at, int pixel, int channel) {
    return *reinterpret_cast<const u16*>(at + place(pixel, channel));
  }

  // Two channels of a pixel, the first one even; with ENDS, zeros beyond the last channel.
  template <bool ENDS>
  __device__ __forceinline__ static u32 channels(const char* at, int pixel, int channel) {
    if (ENDS && channel >= CHANNELS) return 0;
    if (CHANNELS % 2 == 0) return *reinterpret_cast<const u32*>(at + place(pixel, channel));
    const u32 second = ENDS && channel + 1 >= CHANNELS ? 0 : one(at, pixel, channel + 1);
    return paired(one(at, pixel, channel), second, false);
  }

  // A warp's 16 rows of a product's left side, 16 channels from `first` on; with ENDS, the last ones.
  template <bool ENDS>
  __device__ __forceinline__ static void as_rows(u32 (&found)[4], const char* at, int first, int warp, int lane) {
    if constexpr (HAS_VECTORS) {
      const int pixel = pixel_of(warp, lane / 8 % 2, lane % 8);
      load_matrices(found, reinterpret_cast<const uint4*>(at + place(pixel, first + lane / 16 * 8)));
      if (ENDS && CHANNELS % 16 > 0) found[2] = found[3] = 0;
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        found[i] = channels<ENDS>(at, pixel_of(warp, i % 2, lane / 4), first + lane % 4 * 2 + i / 2 * 8);
    }
  }
};

using Terms = Tile<DEPTH>;
using Results = Tile<WIDTH>;

// 64 terms of the weight, for the results from `begin` on: rows of 128 bytes, swizzled; zeros beyond its ends.
__device__ __forceinline__ void load_weight(char* to, const u16* __restrict__ weight, int begin, int part, u32 is_there) {
  constexpr int HEIGHT = TRANSPOSED_WEIGHT ? DEPTH : RESULTS, LENGTH = TRANSPOSED_WEIGHT ? RESULTS : DEPTH;
  constexpr int VECTORS = TRANSPOSED_WEIGHT ? BLOCKS * 8 : 8;  // of a row
  const int part_rows = TRANSPOSED_WEIGHT ? min(ROWS - part * 64, 64) : ROWS;
#pragma unroll 4
  for (int e = threadIdx.x; e < part_rows * VECTORS; e += NUM_THREADS) {
    const int row = e / VECTORS + (TRANSPOSED_WEIGHT ? part * 64 : 0), vector = e % VECTORS + (TRANSPOSED_WEIGHT ? 0 : part * 8);
    const int from_row = row + (TRANSPOSED_WEIGHT ? 0 : begin), column = vector * 8 + (TRANSPOSED_WEIGHT ? begin : 0);
    const u16* const from = weight + (long long)from_row * LENGTH + column;
    char* const target = to + vector / 8 * BLOCK_BYTES + row * 128 + (vector % 8 ^ row % 8) * 16;
    const int left = from_row < HEIGHT ? LENGTH - column : 0;
    if constexpr (LENGTH % 8 == 0) {
      copy_16(target, left > 0 ? from : weight, left > 0);
    } else {
      u32 words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        words[i] = paired(left > 2 * i ? __ldg(from + 2 * i) : 0, left > 2 * i + 1 ? __ldg(from + 2 * i + 1) : 0, false);
      *reinterpret_cast<uint4*>(target) = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
  if (LENGTH % 8 == 0)
    barrier_arrive_behind_copies(is_there);
  else
    barrier_arrive(is_there);
}

// Products of a part and all later ones: terms come to registers while the products before them run. The last ones still
// run afterwards. parts_there: a barrier for each part of the weight.
template <int PART = 0>
__device__ __forceinline__ void multiply(float (&sums)[COLUMNS / 2], u32 (&terms)[STEPS][4], const char* tile, u32 weight,
                                         u32 parts_there, int warp, int lane) {
  constexpr int FIRST = PART * 4, END = FIRST + 4 < STEPS ? FIRST + 4 : STEPS;
#pragma unroll
  for (int step = FIRST; step < END; ++step) {
    if (step < STEPS - 1)
      Terms::template as_rows<false>(terms[step], tile, step * 16, warp, lane);
    else
      Terms::template as_rows<true>(terms[step], tile, step * 16, warp, lane);
  }
  barrier_wait(parts_there + 8 * PART, 0);
  fence_for_engines();
  wgmma_fence();
#pragma unroll
  for (int step = FIRST; step < END; ++step) {
    const u64 right = TRANSPOSED_WEIGHT ? transposed_descriptor(weight, BLOCK_BYTES) + 128 * step
                                        : descriptor(weight + PART * BLOCK_BYTES) + 2 * (step % 4);
    if (step == 0)
      wgmma<false, TRANSPOSED_WEIGHT>(sums, terms[step], right);
    else
      wgmma<true, TRANSPOSED_WEIGHT>(sums, terms[step], right);
  }
  wgmma_commit();
  if constexpr (END < STEPS) multiply<PART + 1>(sums, terms, tile, weight, parts_there, warp, lane);
}

// Two neighbouring results of a pixel.
__device__ __forceinline__ void put(char* tile, int pixel, int result, float first, float second, const float* bias) {
  if (result >= WIDTH) return;
  if (BIAS) first += bias[result], second += bias[result + 1];
  if (RELU) first = first < 0.f ? 0.f : first, second = second < 0.f ? 0.f : second;  // NaN stays NaN
  const u32 word = rounded_pair<DTYPE == 2>(first, second);
  char* const to = tile + Results::place(pixel, result);
  if (WIDTH % 2 == 0) {
    *reinterpret_cast<u32*>(to) = word;
  } else {
    *reinterpret_cast<u16*>(to) = (u16)word;
    if (result + 1 < WIDTH) *reinterpret_cast<u16*>(to + 2) = (u16)(word >> 16);
  }
}

extern "C" __global__ void __launch_bounds__(NUM_THREADS, 1)
    flat_gemm_warpgroups(const char* __restrict__ first, const u16* __restrict__ weight, char* __restrict__ out,
                         const u16* __restrict__ bias, const Geometry g) {
  char* const weights = reinterpret_cast<char*>(memory) + (1024 - shared_address(memory) % 1024) % 1024;
  char* const tiles = weights + WEIGHT_BYTES;
  char* const outs = tiles + STAGES * TILE_BYTES;
  float* const biases = reinterpret_cast<float*>(outs + OUTS * OUT_BYTES);
  const u32 barriers = shared_address(biases) + BIAS_BYTES, written = barriers + 8 * BARRIERS, parts_there = written + 8;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, group = threadIdx.x / 128;
  const int begin = blockIdx.x % SLICES * WIDTH, worker = blockIdx.x / SLICES, workers = gridDim.x / SLICES;
  const int num_tiles = ((g.num_pixels + g.tile_pixels - 1) / g.tile_pixels - worker + workers - 1) / workers;
  if (threadIdx.x == 0) {
    for (int i = 0; i <= BARRIERS; ++i) barrier_init(barriers + 8 * i, 128);
    for (int i = 0; i < PARTS; ++i) barrier_init(parts_there + 8 * i, NUM_THREADS);
    fence_barriers();
  }
  __syncthreads();
  follow();
  const auto place = [&](int tile) { return tiles + tile % STAGES * TILE_BYTES; };
  const auto barrier = [&](int tile) { return barriers + 8 * (tile % BARRIERS); };
  const auto pixel = [&](int tile) { return (worker + tile * workers) * g.tile_pixels; };
  const auto pixels = [&](int tile) { return min(g.tile_pixels, g.num_pixels - pixel(tile)); };
  const auto copy_tile = [&](int tile) {
    if (tile >= num_tiles) return;
    Terms::copy(place(tile), first, pixel(tile), pixels(tile));
    barrier_arrive_behind_copies(barrier(tile));
  };
  copy_tile(group);
#pragma unroll 1
  for (int part = 0; part < PARTS; ++part) load_weight(weights, weight, begin, part, parts_there + 8 * part);
  for (int tile = group + GROUPS; tile < STAGES; tile += GROUPS) copy_tile(tile);
  for (int i = threadIdx.x; BIAS && i < COLUMNS; i += NUM_THREADS)
    biases[i] = i < WIDTH ? half_of<DTYPE == 2>(__ldg(bias + begin + i), false) : 0.f;
  __syncthreads();
#pragma unroll 1
  for (int tile = group; tile < num_tiles; tile += GROUPS) {
    char* const mine = outs + tile % OUTS * OUT_BYTES;
    float sums[COLUMNS / 2];
    u32 terms[STEPS][4];
    barrier_wait(barrier(tile), tile / BARRIERS & 1);
    multiply(sums, terms, place(tile), shared_address(weights), parts_there, warp, lane);
    wait_for_group(group + 1);  // all have the pixels in registers; and have written the results before these
    copy_tile(tile + STAGES);
    wgmma_wait<0>();
    keep(sums);
    if (OUTS < GROUPS && tile > 0) barrier_wait(written, (tile - 1) & 1);
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        put(mine, pixel_of(warp, half, lane / 4), n * 8 + lane % 4 * 2, sums[4 * n + 2 * half], sums[4 * n + 2 * half + 1],
            biases);
    wait_for_group(group + 1);
    Results::template store<RESULTS * 2>(out + begin * 2, mine, pixel(tile), pixels(tile));
    if (OUTS < GROUPS) barrier_arrive(written);
  }
  wait_for_copies();  // of a warpgroup that has no tile
}
