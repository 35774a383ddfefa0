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
// Macros: BN input channels of a tile; STAGES tiles on the way (ALTERNATE: an even number); CONSUMERS warpgroups that
// multiply (SPLIT: 2); SPLIT, ALTERNATE, PRODUCTS (3 | 1); KIND "f16" | "bf16".
#include "copy_engine.cuh"
#include "split.cuh"
#include "wgmma.cuh"

#define SHARERS (ALTERNATE ? 1 : CONSUMERS)  // of a stage
#define BM (64 * SHARERS)
#define BK 64
#define LOADED_CHANNELS (SPLIT ? 32 : 64)  // at a time: 128 bytes
#define LINE_BLOCK (BK * 128)              // bytes: 64 pixels, 128 bytes of each
#define GRAD_BYTES (BM / LOADED_CHANNELS * LINE_BLOCK)
#define INPUT_BYTES (BN / LOADED_CHANNELS * LINE_BLOCK)
#define STAGE_BYTES (GRAD_BYTES + INPUT_BYTES)
#define RAISED (SPLIT ? 40 : 0)  // so that products of numbers around 2^-70 keep their digits
#define FIRST_CONSUMER (SPLIT ? 2 : 1)

struct Geometry {
  int num_outputs, num_inputs, num_pixels;
  int out_height, out_width;
  int step_y, step_x, low_y, low_x;  // result (i, j) starts at input (i * step_y + low_y, j * step_x + low_x)
  int taps_y, taps_x, spread_y, spread_x;
  int num_splits;                    // parts of the pixels; each has sums of its own
};

struct Unit {
  int row, column, tap, split, first, last;

  __device__ __forceinline__ Unit(int k, const Geometry& g) {
    const int columns = (g.num_inputs + BN - 1) / BN, rows = (g.num_outputs + BM - 1) / BM, taps = g.taps_y * g.taps_x;
    const int steps = (g.num_pixels + BK - 1) / BK;
    column = k % columns * BN;
    k /= columns;
    tap = k % taps;
    k /= taps;
    row = k % rows * BM;
    split = k / rows;
    first = (int)((long long)steps * split / g.num_splits);
    last = (int)((long long)steps * (split + 1) / g.num_splits);
  }
};

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
      for (int part = 0; part < BM / LOADED_CHANNELS; ++part)
        load_box(grad + part * LINE_BLOCK, grad_map, barrier, unit.row + LOADED_CHANNELS * part, m, 0);
#pragma unroll
      for (int part = 0; part < BN / LOADED_CHANNELS; ++part)
        load_pixels(input + part * LINE_BLOCK, input_map, barrier, unit.column + LOADED_CHANNELS * part,
                    g.low_x + j * g.step_x, g.low_y + i * g.step_y, image, right, down);
      turn.next();
    }
  }
}

#if SPLIT
__device__ __forceinline__ float largest_of_warp(float v) {  // of numbers that are not negative
  return __uint_as_float(__reduce_max_sync(FULL_WARP, __float_as_uint(v)));
}

__device__ __forceinline__ void store_16_bytes(u32 place, const u32 (&v)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
    ::"r"(place), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}

// A thread's numbers of a pixel, half a line from channel on, to the tile's high and low part: blocks of 64 channels, a
// line per pixel.
template <bool RARE>
__device__ __forceinline__ void store_parts(
    u32 input, int pixel, int first_channel, const float (&v)[BN / 2], float scale) {
#pragma unroll
  for (int i = 0; i < BN / 16; ++i) {
    const int channel = first_channel + 8 * i;
    u32 high[4], low[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      split_pair(v[8 * i + 2 * e], v[8 * i + 2 * e + 1], scale, high[e], low[e]);
      if (RARE && PRODUCTS == 3) set_infinities(high[e], low[e], v[8 * i + 2 * e], v[8 * i + 2 * e + 1]);
    }
    const u32 place = input + channel / 64 * LINE_BLOCK + pixel * 128 + ((channel % 64 / 8) ^ (pixel & 7)) * 16;
    store_16_bytes(place, high);
    if (PRODUCTS == 3) store_16_bytes(place + INPUT_BYTES / 2, low);
  }
}

// The input's tile, 64 pixels of BN float32, becomes its parts, times a scale; exponents[stage]: of the scale.
__device__ __forceinline__ void convert(
    u32 base, u32 full, u32 ready, int units, float* largest, int* exponents, const Geometry& g) {
  const int thread = threadIdx.x % 128, pixel = thread % 64, half = thread / 64;
  Turn turn;
  for (int k = blockIdx.x; k < units; k += gridDim.x) {
    const Unit unit(k, g);
    for (int step = unit.first; step < unit.last; ++step) {
      const u32 input = base + turn.stage * STAGE_BYTES + GRAD_BYTES;
      barrier_wait(full + 8 * turn.stage, turn.parity);
      float v[BN / 2];
      float most = 0.f;
#pragma unroll
      for (int i = 0; i < BN / 8; ++i) {
        const int channel = half * (BN / 2) + 4 * i;
        const u32 place = input + channel / 32 * LINE_BLOCK + pixel * 128 + ((channel % 32 / 4) ^ (pixel & 7)) * 16;
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
          : "=f"(v[4 * i]), "=f"(v[4 * i + 1]), "=f"(v[4 * i + 2]), "=f"(v[4 * i + 3]) : "r"(place) : "memory");
#pragma unroll
        for (int e = 0; e < 4; ++e) most = fmaxf(most, fabsf(v[4 * i + e]));
      }
      const bool rare = __any_sync(FULL_WARP, !is_finite(most));
      if (rare) {
        most = 0.f;
#pragma unroll
        for (int i = 0; i < BN / 2; ++i)
          if (is_finite(v[i])) most = fmaxf(most, fabsf(v[i]));
      }
      most = largest_of_warp(most);
      float* shared_most = largest + 4 * turn.stage;
      if (thread % 32 == 0) shared_most[thread / 32] = most;
      asm volatile("bar.sync 1, 128;" ::: "memory");  // everything is read, too: the tile may be overwritten
      most = fmaxf(fmaxf(shared_most[0], shared_most[1]), fmaxf(shared_most[2], shared_most[3]));
      const int exponent = most > 0.f ? max(min(14 + 127 - (int)(__float_as_uint(most) >> 23), 126), -112) : 0;
      const float scale = power_of_2(exponent);
      if (thread == 0) exponents[turn.stage] = exponent;
      if (rare)
        store_parts<true>(input, pixel, half * (BN / 2), v, scale);
      else
        store_parts<false>(input, pixel, half * (BN / 2), v, scale);
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      barrier_arrive(ready + 8 * turn.stage);
      turn.next();
    }
  }
}

// A chain of products of the stage's 64 pixels, added to sum; the turn ends when its last product is on the way.
__device__ __forceinline__ void multiply_split(
    float (&sum)[BN / 2], Range& range, int local, u32 grad, u32 ready, u32 empty, u32 parity, const int* exponent) {
  const int lane = threadIdx.x % 32, quad = lane % 4;
  const u32 input = grad + GRAD_BYTES;
  float4 v[8];  // 16 pixels i / 2, row i % 2: pixels 2 quad, the next, and both 8 on
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int row = local + i % 2 * 8;
    float x[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int pixel = i / 2 * 16 + 2 * quad + e % 2 + e / 2 * 8;
      const u32 line = grad + row / 32 * LINE_BLOCK + pixel * 128;
      const u32 place = line + ((row % 32 / 4) ^ (pixel & 7)) * 16 + row % 4 * 4;
      asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x[e]) : "r"(place) : "memory");
    }
    v[i] = make_float4(x[0], x[1], x[2], x[3]);
  }
  Fragments a;
  a.split(v);
  barrier_wait(ready, parity);
  const u64 high = transposed_descriptor(input, LINE_BLOCK);
  float chain[BN / 2];
#if !ALTERNATE
  const int group = threadIdx.x / 128;
  asm volatile("bar.sync %0, 256;" ::"r"(group) : "memory");
#endif
  wgmma_fence();
#if PRODUCTS == 3
  const u64 low = transposed_descriptor(input + INPUT_BYTES / 2, LINE_BLOCK);
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
#if !ALTERNATE
  asm volatile("bar.arrive %0, 256;" ::"r"(5 - group) : "memory");
#endif
  float factor[2];
  const int raised = RAISED - *exponent;
  range.factors(raised - a.exponent[0], raised - a.exponent[1], sum, factor);
  wgmma_wait<0>();
  keep(chain);
  if (lane == 0) barrier_arrive(empty);
#pragma unroll
  for (int i = 0; i < BN / 2; ++i) sum[i] += chain[i] * factor[i / 2 % 2];
}
#endif

extern "C" __global__ void __launch_bounds__(128 * (FIRST_CONSUMER + CONSUMERS), 1) conv_wgmma_weight_grad(
    const __grid_constant__ TensorMap grad_map, const __grid_constant__ TensorMap input_map, void* __restrict__ out,
    const __grid_constant__ Geometry g) {
  extern __shared__ unsigned char memory[];
  __shared__ __align__(8) u64 barriers[3 * STAGES];
  const u32 base = (shared_address(memory) + 1023) & ~1023u;
  const u32 full = shared_address(barriers), ready = full + 8 * STAGES, empty = ready + 8 * STAGES;
  const int group = threadIdx.x / 128;
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
  const int units = (g.num_inputs + BN - 1) / BN * ((g.num_outputs + BM - 1) / BM) * taps * g.num_splits;
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(SPLIT ? 32 : 40));
    if (threadIdx.x == 0) produce(base, full, empty, units, &grad_map, &input_map, g);
    return;
  }
#if SPLIT
  __shared__ float largest[4 * STAGES];
  __shared__ int exponents[STAGES];
  if (group == 1) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 112;");
    convert(base, full, ready, units, largest, exponents, g);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 184;");
#if !ALTERNATE
  if (group == 3) asm volatile("bar.arrive 2, 256;" ::: "memory");  // they take turns; group 2 begins
#endif
#else
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMERS == 2 ? 232 : 152));
#endif
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const int consumer = group - FIRST_CONSUMER;
  const int local = 64 * (consumer % SHARERS) + 16 * warp + lane / 4;  // the first row; the second is 8 below
  Turn turn;
  for (int k = blockIdx.x; k < units; k += gridDim.x) {
    const Unit unit(k, g);
    float sum[BN / 2];
#pragma unroll
    for (int i = 0; i < BN / 2; ++i) sum[i] = 0.f;
    Range range;
    for (int step = unit.first; step < unit.last; ++step, turn.next()) {
      if (ALTERNATE && turn.stage % 2 != consumer) continue;
      const u32 grad = base + turn.stage * STAGE_BYTES;
      barrier_wait(full + 8 * turn.stage, turn.parity);
#if SPLIT
      multiply_split(
        sum, range, local, grad, ready + 8 * turn.stage, empty + 8 * turn.stage, turn.parity, exponents + turn.stage);
#else
      const u64 a = transposed_descriptor(grad + consumer * LINE_BLOCK, LINE_BLOCK);
      const u64 b = transposed_descriptor(grad + GRAD_BYTES, LINE_BLOCK);
      keep(sum);
      wgmma_fence();
#pragma unroll
      for (int j = 0; j < 4; ++j) wgmma<true, true>(sum, a + 128 * j, b + 128 * j);
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
      for (int i = 0; i < BN / 8; ++i) {
        const int column = unit.column + 8 * i + 2 * (lane % 4);
        if (column >= g.num_inputs) continue;
        const float first = sum[4 * i + 2 * r] * undone, second = sum[4 * i + 2 * r + 1] * undone;
        if (SPLIT || g.num_splits > 1)
          *(float2*)((float*)out + line + column) = make_float2(first, second);
        else
          *(u32*)((u16*)out + line + column) = pack_result(first, second);
      }
    }
  }
}
