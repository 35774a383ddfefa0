// The weight's gradient on Hopper:
//
//   out (outputs x taps x inputs) = sum over pixels of grad (pixels x outputs) * input (pixels at the tap x inputs)
//
// One warpgroup loads both operands, 64 pixels at a time; others each multiply 64 outputs of the gradient. Programs stay
// and take units: a tile, a tap, and a part of the pixels.
//
// SPLIT: float32 at three float16 products per term, or at one (see conv_wgmma.cu). One more warpgroup turns the input's
// tile into float16 parts in its place, with one scale; those that multiply split their outputs' gradients in registers,
// with a scale per output, and take turns. ALTERNATE, where there are few outputs: both multiply the same ones, one the
// pixels of every other stage, and each writes sums of its own.
// Else: operands of 16 bits, as they are.
//
// TAPS 3: a unit is all three taps of a row, from one tile of the gradient and little more than one of the input: the
// next tap's pixels are the same ones, shifted. For that both operands are read in lines that are as long as the input's,
// padding included, with zeros where the gradient has no pixel. Two WINDOWS where the input is read in steps of two: the
// outer taps share one, the middle one has its own. TAP_ROWS 3, where there are few outputs: a unit is all nine taps of
// 64 outputs, of each row another warpgroup's (operands of 16 bits: registers hold no more than sums).
//
// Macros: BN input channels of a tile; STAGES tiles on the way (ALTERNATE: an even number); CONSUMERS warpgroups that
// multiply (SPLIT: 2); SPLIT, ALTERNATE, PRODUCTS (3 | 1); TAPS (1 | 3: BN is 64); WINDOWS (1 | 2); TAP_ROWS
// (1 | 3: CONSUMERS is 3); KIND "f16" | "bf16".
#include "copy_engine.cuh"
#include "split.cuh"
#include "wgmma.cuh"

#define SHARERS (ALTERNATE ? 1 : CONSUMERS)  // of a stage
#define BM (TAP_ROWS == 1 ? 64 * SHARERS : 64)
#define BK 64
#define LOADED_CHANNELS (SPLIT ? 32 : 64)  // at a time: 128 bytes
#define LINE_BLOCK (BK * 128)              // bytes: 64 pixels, 128 bytes of each
#define GRAD_BYTES (BM / LOADED_CHANNELS * LINE_BLOCK)
#define PIXELS (TAPS == 1 ? BK : BK + 8)   // of a window: what the last tap reads is at most 8 pixels on
#define PIXEL_BLOCK (PIXELS * 128)
#define WINDOW_BYTES (BN / LOADED_CHANNELS * PIXEL_BLOCK)
#define ROW_BYTES (WINDOWS * WINDOW_BYTES)
#define INPUT_BYTES (TAP_ROWS * ROW_BYTES)
#define COLUMNS (TAPS * BN)                // of sums
#define STAGE_BYTES (GRAD_BYTES + INPUT_BYTES)
#define RAISED (SPLIT ? 40 : 0)  // so that products of numbers around 2^-70 keep their digits
#define FIRST_CONSUMER (SPLIT ? 2 : 1)

struct Geometry {
  int num_outputs, num_inputs, num_pixels;
  int out_height, out_width;         // pixels of the gradient as they are read; num_pixels counts these
  int step_y, step_x, low_y, low_x;  // result (i, j) starts at input (i * step_y + low_y, j * step_x + low_x)
  int taps_y, taps_x, spread_y, spread_x;
  int num_splits;                    // parts of the pixels; each has sums of its own
  int true_width;                    // TAPS 3: of the gradient
  int shift;                         // TAPS 3: pixels between the first two taps of a window
};

struct Unit {
  int row, column, tap, split, first, last;  // tap: the first one

  __device__ __forceinline__ Unit(int k, const Geometry& g) {
    const int columns = (g.num_inputs + BN - 1) / BN, rows = (g.num_outputs + BM - 1) / BM;
    const int taps = g.taps_y * g.taps_x / (TAP_ROWS * TAPS);
    const int steps = (g.num_pixels + BK - 1) / BK;
    column = k % columns * BN;
    k /= columns;
    tap = k % taps * (TAP_ROWS * TAPS);
    k /= taps;
    row = k % rows * BM;
    split = k / rows;
    first = (int)((long long)steps * split / g.num_splits);
    last = (int)((long long)steps * (split + 1) / g.num_splits);
  }
};

// The i-th of a unit's taps: its place in the window's tile, in bytes; and which one it is. Those of a window come first.
__device__ __forceinline__ u32 place_of(int i, int shift) {
  return WINDOWS == 2 && i == 2 ? WINDOW_BYTES : i * shift * 128;
}
__device__ __forceinline__ constexpr int tap_of(int i) { return WINDOWS == 2 && i > 0 ? 3 - i : i; }

__device__ __forceinline__ void produce(
    u32 base, u32 full, u32 empty, int units, const TensorMap* grad_map, const TensorMap* input_map,
    const Geometry& g) {
  Turn turn;
  for (int k = blockIdx.x; k < units; k += gridDim.x) {
    const Unit unit(k, g);
    const int right = unit.tap % g.taps_x * g.spread_x, down = unit.tap / g.taps_x * g.spread_y;
    for (int step = unit.first; step < unit.last; ++step) {
      const u32 barrier = full + 8 * turn.stage, grad = base + turn.stage * STAGE_BYTES, input = grad + GRAD_BYTES;
      const int m = step * BK, j = m % g.out_width, rest = m / g.out_width;
      const int i = rest % g.out_height, image = rest / g.out_height;
      barrier_wait(empty + 8 * turn.stage, turn.parity ^ 1);
      barrier_expect(barrier, STAGE_BYTES);
#pragma unroll
      for (int part = 0; part < BM / LOADED_CHANNELS; ++part) {
        const u32 target = grad + part * LINE_BLOCK;
        const int channel = unit.row + LOADED_CHANNELS * part;
        if (TAPS == 1)
          load_box(target, grad_map, barrier, channel, m, 0);
        else
          load_pixels(target, grad_map, barrier, channel, j, i, image, 0, 0);
      }
#pragma unroll
      for (int part = 0; part < TAP_ROWS * WINDOWS * BN / LOADED_CHANNELS; ++part) {
        const int window = LOADED_CHANNELS * part / BN;
        load_pixels(input + part * PIXEL_BLOCK, input_map, barrier, unit.column + LOADED_CHANNELS * part % BN,
                    g.low_x + j * g.step_x, g.low_y + i * g.step_y, image, right + window % WINDOWS * g.spread_x,
                    down + window / WINDOWS * g.spread_y);
      }
      turn.next();
    }
  }
}

#if SPLIT
__device__ __forceinline__ void load_16_bytes(u32 place, float& x, float& y, float& z, float& w) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x), "=f"(y), "=f"(z), "=f"(w) : "r"(place) : "memory");
}

__device__ __forceinline__ void store_16_bytes(u32 place, const u32 (&v)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
    ::"r"(place), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}

// Eight channels of a pixel to a thread at a time; threads of a warp have pixels in a row, as shared memory wants it.
#define CHUNKS (PIXELS * BN / 8)  // of a window
#define ROUNDS ((CHUNKS + 127) / 128)  // the last one may be of fewer threads

// Of the k-th chunk: the places of its first four numbers, of its last four, and of its high part.
struct Chunk {
  u32 first, second, part;

  __device__ __forceinline__ Chunk(u32 window, int k) {
    const int pixel = k % PIXELS, channel = k / PIXELS * 8;
    const u32 line = window + pixel * 128 + channel / 32 * PIXEL_BLOCK;
    first = line + ((channel % 32 / 4) ^ (pixel & 7)) * 16;
    second = line + ((channel % 32 / 4 + 1) ^ (pixel & 7)) * 16;
    part = window + pixel * 128 + channel / 64 * PIXEL_BLOCK + ((channel % 64 / 8) ^ (pixel & 7)) * 16;
  }
};

__device__ __forceinline__ bool is_chunk(int k) { return CHUNKS % 128 == 0 || k < CHUNKS; }

// A thread's numbers to the window's high and low part: blocks of 64 channels, a line per pixel.
template <bool RARE>
__device__ __forceinline__ void store_parts(u32 window, int thread, const float (&v)[8 * ROUNDS], float scale) {
#pragma unroll
  for (int i = 0; i < ROUNDS; ++i) {
    const int k = thread + 128 * i;
    if (!is_chunk(k)) continue;
    u32 high[4], low[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      split_pair(v[8 * i + 2 * e], v[8 * i + 2 * e + 1], scale, high[e], low[e]);
      if (RARE && PRODUCTS == 3) set_infinities(high[e], low[e], v[8 * i + 2 * e], v[8 * i + 2 * e + 1]);
    }
    const u32 place = Chunk(window, k).part;
    store_16_bytes(place, high);
    if (PRODUCTS == 3) store_16_bytes(place + WINDOW_BYTES / 2, low);
  }
}

#define HAS_INFINITIES (1 << 16)  // in exponents

// A window, BN float32 of each pixel, becomes its parts, times 2^exponent. most_of_warp: four numbers, of this window.
__device__ __forceinline__ void convert_window(u32 window, float* most_of_warp, int* exponent) {
  const int thread = threadIdx.x % 128;
  float v[8 * ROUNDS];
  float mosts[4] = {0.f, 0.f, 0.f, 0.f};  // four, which need not wait for one another
#pragma unroll
  for (int i = 0; i < ROUNDS; ++i) {
    const Chunk chunk(window, thread + 128 * i);
#pragma unroll
    for (int e = 0; e < 8; ++e) v[8 * i + e] = 0.f;
    if (is_chunk(thread + 128 * i)) {
      load_16_bytes(chunk.first, v[8 * i], v[8 * i + 1], v[8 * i + 2], v[8 * i + 3]);
      load_16_bytes(chunk.second, v[8 * i + 4], v[8 * i + 5], v[8 * i + 6], v[8 * i + 7]);
    }
  }
#pragma unroll
  for (int i = 0; i < 8 * ROUNDS; ++i) mosts[i % 4] = larger_or_nan(mosts[i % 4], fabsf(v[i]));
  float most = larger_or_nan(larger_or_nan(mosts[0], mosts[1]), larger_or_nan(mosts[2], mosts[3]));
  const bool rare = __any_sync(FULL_WARP, !is_finite(most));
  if (rare) {
    most = 0.f;
#pragma unroll
    for (int i = 0; i < 8 * ROUNDS; ++i)
      if (is_finite(v[i])) most = fmaxf(most, fabsf(v[i]));
  }
  most = largest_of_warp(most);
  if (thread % 32 == 0) most_of_warp[thread / 32] = rare ? -most : most;
  asm volatile("bar.sync 1, 128;" ::: "memory");  // everything is read, too: the window may be overwritten
  u32 signs = rare ? 1u << 31 : 0;
#pragma unroll
  for (int i = 1; i < 4; ++i) {
    const float other = most_of_warp[(thread / 32 + i) % 4];
    signs |= __float_as_uint(other);
    most = fmaxf(most, fabsf(other));
  }
  const int chosen = most > 0.f ? max(min(14 + 127 - (int)(__float_as_uint(most) >> 23), 126), -112) : 0;
  const float scale = power_of_2(chosen);
  if (thread == 0) *exponent = chosen + (TAPS == 3 && signs >> 31 ? HAS_INFINITIES : 0);
  if (rare)
    store_parts<true>(window, thread, v, scale);
  else
    store_parts<false>(window, thread, v, scale);
}

__device__ __forceinline__ void convert(
    u32 base, u32 full, u32 ready, int units, float* largest, int* exponents, const Geometry& g) {
  Turn turn;
  for (int k = blockIdx.x; k < units; k += gridDim.x) {
    const Unit unit(k, g);
    for (int step = unit.first; step < unit.last; ++step) {
      const u32 input = base + turn.stage * STAGE_BYTES + GRAD_BYTES;
      barrier_wait(full + 8 * turn.stage, turn.parity);
#pragma unroll
      for (int i = 0; i < WINDOWS; ++i) {
        const int slot = turn.stage * WINDOWS + i;
        convert_window(input + i * WINDOW_BYTES, largest + 4 * slot, exponents + slot);
      }
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      barrier_arrive(ready + 8 * turn.stage);
      turn.next();
    }
  }
}

#define CHAIN (BN / 2)  // sums of a thread and tap

__device__ __forceinline__ float load_number(u32 place) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(place) : "memory");
  return x;
}

// Of the gradient, in a stage.
__device__ __forceinline__ u32 place_of_grad(int row, int pixel) {
  return row / 32 * LINE_BLOCK + pixel * 128 + ((row % 32 / 4) ^ (pixel & 7)) * 16 + row % 4 * 4;
}

// Those that a thread multiplies, known before the first stage: rows local and 8 below, pixels 2 quad and the next; of
// other pixels, whole swizzles of 8 lines further on, they lie at distances that the loads' instructions hold.
struct Places {
  u32 place[2][2];

  __device__ __forceinline__ Places(int local) {
#pragma unroll
    for (int i = 0; i < 4; ++i) place[i / 2][i % 2] = place_of_grad(local + i / 2 * 8, threadIdx.x % 4 * 2 + i % 2);
  }

  // Row r, the j-th group of 16 pixels: 2 quad, the next, and both 8 on.
  __device__ __forceinline__ float4 load(u32 grad, int j, int r) const {
    const u32 first = grad + place[r][0] + j * 2048, second = grad + place[r][1] + j * 2048;
    return make_float4(
      load_number(first), load_number(second), load_number(first + 1024), load_number(second + 1024));
  }
};

// The chain of a tap, products 0 .. 63.
__device__ __forceinline__ void multiply_parts(float (&chain)[CHAIN], const Fragments& a, u32 input) {
  const u64 high = transposed_descriptor(input, PIXEL_BLOCK);
  wgmma_fence();
#if PRODUCTS == 3
  const u64 low = transposed_descriptor(input + WINDOW_BYTES / 2, PIXEL_BLOCK);
  wgmma<false, true>(chain, a.low[0], high);
#pragma unroll
  for (int j = 1; j < 4; ++j) wgmma<true, true>(chain, a.low[j], high + 128 * j);
#pragma unroll
  for (int j = 0; j < 4; ++j) wgmma<true, true>(chain, a.high[j], low + 128 * j);
#endif
  wgmma<PRODUCTS == 3, true>(chain, a.high[0], high);
#pragma unroll
  for (int j = 1; j < 4; ++j) wgmma<true, true>(chain, a.high[j], high + 128 * j);
  wgmma_commit();
}

// The same for a tile with infinities, which would make NaN of the zeros between the gradient's lines: without those.
__device__ __forceinline__ void multiply_between(
    float (&chain)[CHAIN], const int (&exponent)[2], int local, u32 grad, u32 input, int first_pixel,
    const Geometry& g) {
#pragma unroll
  for (int i = 0; i < CHAIN; ++i) chain[i] = 0.f;
#pragma unroll 1
  for (int pixel = 0; pixel < BK; ++pixel) {
    if ((first_pixel + pixel) % g.out_width >= g.true_width) continue;
    float a[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int half = exponent[r] / 2;
      const float number = load_number(grad + place_of_grad(local + 8 * r, pixel));
      a[r] = number * power_of_2(half) * power_of_2(exponent[r] - half);
    }
    const u32 line = input + pixel * 128;
#pragma unroll
    for (int i = 0; i < BN / 8; ++i) {
      const u32 place = line + (i ^ (line >> 7 & 7)) * 16 + threadIdx.x % 4 * 4;
      u32 part;
      float first, second;
      asm volatile("ld.shared.b32 %0, [%1];" : "=r"(part) : "r"(place) : "memory");
      unpack(part, first, second);
#if PRODUCTS == 3
      float first_low, second_low;
      asm volatile("ld.shared.b32 %0, [%1];" : "=r"(part) : "r"(place + WINDOW_BYTES / 2) : "memory");
      unpack(part, first_low, second_low);
      first += first_low;
      second += second_low;
#endif
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        chain[4 * i + 2 * r] += a[r] * first;
        chain[4 * i + 2 * r + 1] += a[r] * second;
      }
    }
  }
  __syncwarp();  // one thread tells of all that they have read
}

// Warpgroups take turns, so that one splits its outputs' gradients while products of the other one run: its turn is over
// when those of tap LAST_OF_TURN are on the way. Of three taps that is the second: then products of both are waiting,
// and some run while either adds up a chain.
#define TURNS (TAPS == 3 || !ALTERNATE)
#define LAST_OF_TURN (TAPS == 3 ? 1 : 0)

__device__ __forceinline__ void begin_turn() {
#if TURNS
  asm volatile("bar.sync %0, 256;" ::"r"(threadIdx.x / 128) : "memory");
#endif
}

__device__ __forceinline__ void end_turn() {
#if TURNS
  asm volatile("bar.arrive %0, 256;" ::"r"(5 - threadIdx.x / 128) : "memory");
#endif
}

__device__ __forceinline__ void add_chain(
    float (&sum)[COLUMNS / 2], int tap, const float (&chain)[CHAIN], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < CHAIN; ++i) sum[tap * CHAIN + i] += chain[i] * factor[i / 2 % 2];
}

// A chain of products of the stage's 64 pixels for each tap, added to sum.
__device__ __forceinline__ void multiply_split(
    float (&sum)[COLUMNS / 2], Range& range, const Places& places, int local, u32 grad, u32 ready, u32 empty,
    u32 parity, const int* exponents, int first_pixel, const Geometry& g) {
  const u32 input = grad + GRAD_BYTES;
  float4 v[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = places.load(grad, i / 2, i % 2);
  Fragments a;
  a.split(v);
  barrier_wait(ready, parity);
  int raised[WINDOWS];
  bool has_infinities = false;
#pragma unroll
  for (int i = 0; i < WINDOWS; ++i) {
    raised[i] = RAISED - exponents[i];
    const bool rare = raised[i] < -HAS_INFINITIES / 2;
    raised[i] += rare ? HAS_INFINITIES : 0;
    has_infinities |= rare;
  }
  float factor[2], chain[CHAIN];
  range.factors(raised[0] - a.exponent[0], raised[0] - a.exponent[1], sum, factor);
  begin_turn();
  if (TAPS == 3 && has_infinities) {
    end_turn();
#pragma unroll
    for (int tap = 0; tap < TAPS; ++tap) {
      if (WINDOWS == 2 && tap == 2)
        range.factors(raised[WINDOWS - 1] - a.exponent[0], raised[WINDOWS - 1] - a.exponent[1], sum, factor);
      multiply_between(chain, a.exponent, local, grad, input + place_of(tap, g.shift), first_pixel, g);
      add_chain(sum, tap, chain, factor);
    }
    if (threadIdx.x % 32 == 0) barrier_arrive(empty);
    return;
  }
#pragma unroll
  for (int tap = 0; tap < TAPS; ++tap) {
    if (WINDOWS == 2 && tap == 2)
      range.factors(raised[WINDOWS - 1] - a.exponent[0], raised[WINDOWS - 1] - a.exponent[1], sum, factor);
    multiply_parts(chain, a, input + place_of(tap, g.shift));
    if (tap == LAST_OF_TURN) end_turn();
    wgmma_wait<0>();
    keep(chain);
    if (tap == TAPS - 1 && threadIdx.x % 32 == 0) barrier_arrive(empty);
    add_chain(sum, tap, chain, factor);
  }
}
#endif

extern "C" __global__ void __launch_bounds__(128 * (FIRST_CONSUMER + CONSUMERS), 1) conv_wgmma_weight_grad(
    const __grid_constant__ TensorMap grad_map, const __grid_constant__ TensorMap input_map, void* __restrict__ out,
    const __grid_constant__ Geometry g) {
  extern __shared__ unsigned char memory[];
  __shared__ __align__(8) u64 barriers[3 * STAGES];
  const u32 base = (shared_address(memory) + 1023) & ~1023u;
  const u32 full = shared_address(barriers), ready = full + 8 * STAGES, empty = ready + 8 * STAGES;
  const int group = __shfl_sync(FULL_WARP, threadIdx.x / 128, 0);  // so that the compiler knows that a warp has one
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      barrier_init(full + 8 * i, 1);
      barrier_init(ready + 8 * i, 128);
      barrier_init(empty + 8 * i, 4 * SHARERS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  const int taps = g.taps_y * g.taps_x;
  const int units = (g.num_inputs + BN - 1) / BN * ((g.num_outputs + BM - 1) / BM) * (taps / (TAP_ROWS * TAPS)) * g.num_splits;
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(SPLIT ? (TAPS == 3 ? 24 : 32) : 40));
    if (threadIdx.x == 0) produce(base, full, empty, units, &grad_map, &input_map, g);
    return;
  }
#if SPLIT
  __shared__ float largest[4 * STAGES * WINDOWS];
  __shared__ int exponents[STAGES * WINDOWS];
  if (group == 1) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(TAPS == 3 ? 88 : 112));
    convert(base, full, ready, units, largest, exponents, g);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(TAPS == 3 ? 200 : 184));
#if TURNS
  if (group == 3) asm volatile("bar.arrive 2, 256;" ::: "memory");  // they take turns; group 2 begins
#endif
#else
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMERS == 2 ? 232 : CONSUMERS == 4 ? 104 : 152));
#endif
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const int consumer = group - FIRST_CONSUMER;
  const int block = TAP_ROWS == 1 ? consumer % SHARERS : 0, row_of_taps = TAP_ROWS == 1 ? 0 : consumer;
  const int local = 64 * block + 16 * warp + lane / 4;  // the first row; the second is 8 below
#if SPLIT
  const Places places(local);
#endif
  Turn turn;
  for (int k = blockIdx.x; k < units; k += gridDim.x) {
    const Unit unit(k, g);
    float sum[COLUMNS / 2];
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; ++i) sum[i] = 0.f;
    Range range;
    for (int step = unit.first; step < unit.last; ++step, turn.next()) {
      if (ALTERNATE && turn.stage % 2 != consumer) continue;
      const u32 grad = base + turn.stage * STAGE_BYTES;
      barrier_wait(full + 8 * turn.stage, turn.parity);
#if SPLIT
      multiply_split(
        sum, range, places, local, grad, ready + 8 * turn.stage, empty + 8 * turn.stage, turn.parity,
        exponents + turn.stage * WINDOWS, step * BK, g);
#else
      const u32 input = grad + GRAD_BYTES + row_of_taps * ROW_BYTES;
      const u64 a = transposed_descriptor(grad + block * LINE_BLOCK, LINE_BLOCK);
      // Columns of the next tap stand shift pixels further on: one product takes all taps of a window.
      const u64 b = transposed_descriptor(input, TAPS == 1 ? PIXEL_BLOCK : g.shift * 128);
      keep(sum);
      wgmma_fence();
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#if WINDOWS == 1
        wgmma<true, true>(sum, a + 128 * j, b + 128 * j);
#else
        wgmma<true, true>(reinterpret_cast<float (&)[64]>(sum), a + 128 * j, b + 128 * j);
        wgmma<true, true>(reinterpret_cast<float (&)[32]>(sum[64]), a + 128 * j, b + 128 * j + WINDOW_BYTES / 16);
#endif
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (lane == 0 && step > unit.first) barrier_arrive(empty + 8 * (turn.stage ? turn.stage - 1 : STAGES - 1));
#endif
    }
#if !SPLIT
    wgmma_wait<0>();
    keep(sum);
    if (lane == 0 && unit.last > unit.first) barrier_arrive(empty + 8 * (turn.stage ? turn.stage - 1 : STAGES - 1));
#endif
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = unit.row + local + 8 * r;
      if (row >= g.num_outputs) continue;
      const float undone = power_of_2(range.lowered[r] - RAISED);
      const long long part = ALTERNATE ? 2 * unit.split + consumer : unit.split;
      const long long line = ((part * g.num_outputs + row) * taps + unit.tap) * g.num_inputs;
#pragma unroll
      for (int i = 0; i < COLUMNS / 8; ++i) {
        const int channel = unit.column + 8 * i % BN + 2 * (lane % 4);
        const int column = (TAPS * row_of_taps + tap_of(8 * i / BN)) * g.num_inputs + channel;
        if (channel >= g.num_inputs) continue;
        const float first = sum[4 * i + 2 * r] * undone, second = sum[4 * i + 2 * r + 1] * undone;
        if (SPLIT || g.num_splits > 1)
          *(float2*)((float*)out + line + column) = make_float2(first, second);
        else
          *(u32*)((u16*)out + line + column) = pack_result(first, second);
      }
    }
  }
}
