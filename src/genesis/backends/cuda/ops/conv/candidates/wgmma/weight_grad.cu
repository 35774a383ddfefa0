// The weight's gradient on Hopper:
//
//   out (outputs x taps x inputs) = sum over pixels of grad (pixels x outputs) * input (pixels at the tap x inputs)
//
// One warpgroup loads both operands, 64 pixels at a time; others each multiply 64 outputs of the gradient. Programs stay
// and take units: a tile, a tap, and a part of the pixels.
//
// SPLIT: float32 at three float16 products per term, or at one (see forward.cu). One more warpgroup turns the input's
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
// GROUPED: each group's outputs meet its inputs only. A tile is of one group; what it loads of the next one's channels
// comes to nothing.
//
// Macros: BN input channels of a tile; STAGES tiles on the way (ALTERNATE: an even number); CONSUMERS warpgroups that
// multiply (SPLIT: 2); SPLIT, ALTERNATE, PRODUCTS (3 | 1); TAPS (1 | 3: BN is 64); WINDOWS (1 | 2); TAP_ROWS
// (1 | 3: CONSUMERS is 3); GROUPED (0 | 1); KIND "f16" | "bf16".
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

static_assert(!ALTERNATE || STAGES % 2 == 0, "a stage belongs to one warpgroup");  // expand_1x1_stages.cuh says why

struct Geometry {
  int num_groups, num_outputs, num_inputs, num_pixels;  // outputs and inputs of a group
  int out_height, out_width;         // pixels of the gradient as they are read; num_pixels counts these
  int step_y, step_x, low_y, low_x;  // result (i, j) starts at input (i * step_y + low_y, j * step_x + low_x)
  int taps_y, taps_x, spread_y, spread_x;
  int num_splits;                    // parts of the pixels; each has sums of its own
  int true_width;                    // TAPS 3: of the gradient
  int shift;                         // TAPS 3: pixels between the first two taps of a window
};

struct Unit {
  int row, end, column, first_input, tap, split, first, last;  // row: of all outputs; column: of a group; the first tap

  __device__ __forceinline__ Unit(int k, const Geometry& g) {
    const int columns = (g.num_inputs + BN - 1) / BN, rows = (g.num_outputs + BM - 1) / BM;
    const int taps = g.taps_y * g.taps_x / (TAP_ROWS * TAPS);
    const int steps = (g.num_pixels + BK - 1) / BK;
    column = k % columns * BN;
    k /= columns;
    tap = k % taps * (TAP_ROWS * TAPS);
    k /= taps;
    row = k % rows * BM;
    k /= rows;
    const int group = GROUPED ? k % g.num_groups : 0;
    split = GROUPED ? k / g.num_groups : k;
    row += group * g.num_outputs;
    end = (group + 1) * g.num_outputs;
    first_input = group * g.num_inputs;
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
        const int channel = unit.first_input + unit.column + LOADED_CHANNELS * part % BN;
        load_pixels(input + part * PIXEL_BLOCK, input_map, barrier, channel, g.low_x + j * g.step_x,
                    g.low_y + i * g.step_y, image, right + window % WINDOWS * g.spread_x,
                    down + window / WINDOWS * g.spread_y);
      }
      turn.next();
    }
  }
}

#if SPLIT
#include "weight_grad_split.cuh"
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
    fence_barriers();
  }
  __syncthreads();
  follow_and_hold();
  const int taps = g.taps_y * g.taps_x;
  const int tiles = (g.num_inputs + BN - 1) / BN * ((g.num_outputs + BM - 1) / BM) * (taps / (TAP_ROWS * TAPS));
  const int groups = GROUPED ? g.num_groups : 1, units = tiles * groups * g.num_splits;
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
    if (k + gridDim.x >= units) let_next_begin();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = unit.row + local + 8 * r;
      if (row >= unit.end) continue;
      const float undone = power_of_2(range.lowered[r] - RAISED);
      const long long part = ALTERNATE ? 2 * unit.split + consumer : unit.split;
      const long long line = ((part * groups * g.num_outputs + row) * taps + unit.tap) * g.num_inputs;
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
