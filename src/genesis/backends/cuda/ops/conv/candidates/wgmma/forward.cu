// Convolution as an implicit matrix product on Hopper: one warpgroup loads, the others multiply; programs stay.
//
//   out (pixels x outputs) = sum over taps and channels of input (pixels x channels) * weight (outputs x channels)
//
// The copy engine gathers the pixels that a tap meets (im2col mode: padding, strides and dilation are its business).
// Rows of taps that meet nothing but padding above or below the image are left out: with a dilation of half an image,
// that is a third of all products.
// The input's gradient is the same sum over the gradient, for each residue of the position modulo the stride: a launch
// each, all at once.
//
// SPLIT: float32. Weights come as float16 parts (kernels.py); the input is split here, in registers, with a
// scale per pixel and 64 channels, so that small pixels beside large ones keep their digits. Three products per term,
// the small ones first, in chains of 64 terms that are added up in float32: tensor cores cut off where they should
// round, which long chains would show. (Ootomo & Yokota 2022, arXiv:2203.03341.) Or only that of the high parts.
// Else: operands of 16 bits, one chain.
//
// Macros: BN columns of a tile; STAGES tiles on the way; CONSUMERS warpgroups of 64 rows; SPLIT, PRODUCTS (3 | 1);
// TRANSPOSED_WEIGHT: the weight lies in memory with its columns innermost (16 bits only); PINGPONG: warpgroups take turns;
// KIND "f16" | "bf16"; STATISTICS: of the results' columns, too, in parts: a program takes all its tiles in one column of
// tiles (16 bits only, no splits, neither residual nor relu).
#include "copy_engine.cuh"
#include "split.cuh"
#include "wgmma.cuh"

#define BM (64 * CONSUMERS)
#define BK 64
#define INPUT_BYTES (BM * BK * (SPLIT ? 4 : 2))
#define WEIGHT_PARTS (SPLIT && PRODUCTS == 3 ? 2 : 1)
#define WEIGHT_BYTES (BN * BK * 2 * WEIGHT_PARTS)
#define LINE_BLOCK (BK * 128)  // bytes: 64 channels, 128 bytes of each
#define RAISED 16              // forward.py: weights come with a scale that undoes it
#define STAGE_BYTES (INPUT_BYTES + WEIGHT_BYTES)
#define CHAIN (SPLIT && BN > 128 ? 128 : BN)  // columns at a time: registers hold the chain beside the sums
#define PITCH 36                              // floats between staged rows

struct Geometry {
  int num_pixels, num_outputs, num_inputs;
  int out_height, out_width;           // the results of this launch
  int step_y, step_x, low_y, low_x;    // result (i, j) starts at input (i * step_y + low_y, j * step_x + low_x)
  int taps_y, taps_x, spread_y, spread_x;
  int tap_first_y, tap_step_y, tap_first_x, tap_step_x, weight_width;  // which of the weight's taps these are
  int num_splits;                      // programs that share the terms of a tile; each writes sums of its own
  int relu;
  int is_beside, has_more_beside;      // the launch before, or after, computes other results of the same convolution
  int in_height;                       // of the operand: beyond it there is padding
  long long out_image, out_row, out_column, out_start;  // in elements
};

#if STATISTICS
#include "statistics.cuh"
#else
struct Statistics {
  __device__ __forceinline__ Statistics(u32) {}
  __device__ __forceinline__ float4 pivot(int, u32, int, float4) const { return make_float4(0.f, 0.f, 0.f, 0.f); }
  __device__ __forceinline__ void add(int, uint2, float4) const {}
  __device__ __forceinline__ void end_tile(int) const {}
};
#endif

// The k-th unit of work: a tile and the part of its steps. Tiles of the same pixels follow one another.
struct Unit {
  int row, column, split, first, last;

  // row_steps: of a row of taps.
  __device__ __forceinline__ Unit(int k, int row_steps, const Geometry& g) {
    const int column_tiles = (g.num_outputs + BN - 1) / BN, tile = k / g.num_splits;
    split = k % g.num_splits;
    row = tile / column_tiles * BM;
    column = tile % column_tiles * BN;
    // The input's rows that the first tap meets from the tile's first and last row; of several images, from any.
    const int start = row / g.out_width, end = (min(row + BM, g.num_pixels) - 1) / g.out_width;
    const bool is_one_image = start / g.out_height == end / g.out_height;
    const int top = (is_one_image ? start % g.out_height : 0) * g.step_y + g.low_y;
    const int bottom = (is_one_image ? end % g.out_height : g.out_height - 1) * g.step_y + g.low_y;
    const int first_tap = bottom < 0 ? (g.spread_y - 1 - bottom) / g.spread_y : 0;
    const int end_tap = top < g.in_height ? min((g.in_height - top + g.spread_y - 1) / g.spread_y, g.taps_y) : 0;
    const int steps = max(end_tap - first_tap, 0) * row_steps;
    first = first_tap * row_steps + (int)((long long)steps * split / g.num_splits);
    last = first_tap * row_steps + (int)((long long)steps * (split + 1) / g.num_splits);
  }
};

__device__ __forceinline__ void produce(
    u32 base, u32 full, u32 empty, int units, int row_steps, int chunks, const TensorMap* input_map,
    const TensorMap* high_map, const TensorMap* low_map, const Geometry& g) {
  Turn turn;
  for (int k = blockIdx.x; k < units; k += gridDim.x) {
    const Unit unit(k, row_steps, g);
    const int j = unit.row % g.out_width, rest = unit.row / g.out_width;
    const int i = rest % g.out_height, image = rest / g.out_height;
    const int x = g.low_x + j * g.step_x, y = g.low_y + i * g.step_y;
    int chunk = unit.first % chunks, tap = unit.first / chunks, tap_x = tap % g.taps_x, tap_y = tap / g.taps_x;
    for (int step = unit.first; step < unit.last; ++step) {
      const u32 barrier = full + 8 * turn.stage, input = base + turn.stage * STAGE_BYTES, weight = input + INPUT_BYTES;
      const int index = (g.tap_first_y + tap_y * g.tap_step_y) * g.weight_width + g.tap_first_x + tap_x * g.tap_step_x;
      const int right = tap_x * g.spread_x, down = tap_y * g.spread_y, channel = chunk * BK;
      barrier_wait(empty + 8 * turn.stage, turn.parity ^ 1);
      barrier_expect(barrier, STAGE_BYTES);
      load_pixels(input, input_map, barrier, channel, x, y, image, right, down);
#if SPLIT
      load_pixels(input + INPUT_BYTES / 2, input_map, barrier, channel + BK / 2, x, y, image, right, down);
#endif
#if TRANSPOSED_WEIGHT
#pragma unroll
      for (int part = 0; part < BN / 64; ++part)
        load_box(weight + part * LINE_BLOCK, high_map, barrier, unit.column + 64 * part, index, channel);
#else
      if (WEIGHT_PARTS == 2) load_box(weight + WEIGHT_BYTES / 2, low_map, barrier, channel, index, unit.column);
      load_box(weight, high_map, barrier, channel, index, unit.column);
#endif
      turn.next();
      if (++chunk == chunks) {
        chunk = 0;
        if (++tap_x == g.taps_x) {
          tap_x = 0;
          ++tap_y;
        }
      }
    }
  }
}

// The tile's sums to memory, through shared memory: a warp writes four rows of 32 columns at a time, whole lines.
__device__ __forceinline__ void store(
    const float (&sum)[BN / 2], const Range& range, const Unit& unit, int rows, int local, u32 staging, void* out,
    const float* weight_inverse, const void* bias, const void* residual, Statistics& statistics, const Geometry& g) {
  const int lane = threadIdx.x % 32, quad = lane % 4;
  const bool whole = g.num_splits == 1;
  long long place[4];
#if SPLIT
  float raise[4];
#endif
#pragma unroll
  for (int q = 0; q < 4; ++q) {
#if SPLIT
    raise[q] = power_of_2(__shfl_sync(FULL_WARP, range.lowered[q / 2], lane / 8 * 8 + q % 2 * 4));
#endif
    const int m = rows + 4 * q + lane / 8;
    const int j = m % g.out_width, rest = m / g.out_width, i = rest % g.out_height, image = rest / g.out_height;
    place[q] = g.out_start + image * g.out_image + i * g.out_row + j * g.out_column;
    if (!whole) place[q] = ((long long)unit.split * g.num_pixels + m) * g.num_outputs;
    if (m >= g.num_pixels) place[q] = -1;
  }
#pragma unroll
  for (int k = 0; k < BN / 32; ++k) {
    __syncwarp();
#pragma unroll
    for (int q = 0; q < 4; ++q)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};"
          ::"r"(staging + ((local + 8 * r) * PITCH + 8 * q + 2 * quad) * 4), "f"(sum[16 * k + 4 * q + 2 * r]),
            "f"(sum[16 * k + 4 * q + 2 * r + 1]) : "memory");
    __syncwarp();
    const int n = unit.column + 32 * k + lane % 8 * 4;
    const bool inside = n < g.num_outputs;
    if (!inside && !STATISTICS) continue;  // for statistics, the warp stays together
    float4 shift = make_float4(0.f, 0.f, 0.f, 0.f);
#if SPLIT
    const float4 scale = __ldg((const float4*)(weight_inverse + n));
    if (bias && whole) shift = __ldg((const float4*)((const float*)bias + n));
#else
    if (bias && whole && inside) {
      const uint2 b = __ldg((const uint2*)((const u16*)bias + n));
      shift = make_float4(widen(b.x), widen(b.x >> 16), widen(b.y), widen(b.y >> 16));
    }
#endif
    const float4 pivot = statistics.pivot(k, staging, g.num_pixels - rows, shift);
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      float4 y;
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
        : "=f"(y.x), "=f"(y.y), "=f"(y.z), "=f"(y.w)
        : "r"(staging + ((4 * q + lane / 8) * PITCH + lane % 8 * 4) * 4) : "memory");
      if (place[q] < 0 || !inside) continue;
#if SPLIT
      y = make_float4(y.x * scale.x, y.y * scale.y, y.z * scale.z, y.w * scale.w);
      y = make_float4(y.x * raise[q], y.y * raise[q], y.z * raise[q], y.w * raise[q]);
#endif
      y = make_float4(y.x + shift.x, y.y + shift.y, y.z + shift.z, y.w + shift.w);
      if (residual && whole) {
#if SPLIT
        const float4 z = __ldg((const float4*)((const float*)residual + place[q] + n));
#else
        const uint2 b = __ldg((const uint2*)((const u16*)residual + place[q] + n));
        const float4 z = make_float4(widen(b.x), widen(b.x >> 16), widen(b.y), widen(b.y >> 16));
#endif
        y.x += z.x;
        y.y += z.y;
        y.z += z.z;
        y.w += z.w;
      }
      if (g.relu && whole) {  // NaN stays NaN
        y.x = y.x < 0.f ? 0.f : y.x;
        y.y = y.y < 0.f ? 0.f : y.y;
        y.z = y.z < 0.f ? 0.f : y.z;
        y.w = y.w < 0.f ? 0.f : y.w;
      }
#if !SPLIT
      if (whole) {
        const uint2 stored = make_uint2(pack_result(y.x, y.y), pack_result(y.z, y.w));
        *(uint2*)((u16*)out + place[q] + n) = stored;
        statistics.add(k, stored, pivot);
        continue;
      }
#endif
      *(float4*)((float*)out + place[q] + n) = y;
    }
  }
}

extern "C" __global__ void __launch_bounds__(128 * (CONSUMERS + 1), 1) conv_wgmma(
    const __grid_constant__ TensorMap input_map, const __grid_constant__ TensorMap high_map,
    const __grid_constant__ TensorMap low_map, void* __restrict__ out, const float* __restrict__ weight_inverse,
    const void* __restrict__ bias, const void* __restrict__ residual,
#if STATISTICS
    float* __restrict__ partial,
#endif
    const __grid_constant__ Geometry g) {
  extern __shared__ unsigned char memory[];
  __shared__ __align__(8) u64 barriers[2 * STAGES];
  const u32 base = (shared_address(memory) + 1023) & ~1023u;
  const u32 full = shared_address(barriers), empty = full + 8 * STAGES;
  const int group = threadIdx.x / 128;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      barrier_init(full + 8 * i, 1);
      barrier_init(empty + 8 * i, 4 * CONSUMERS);
    }
    fence_barriers();
  }
  __syncthreads();
  if (!g.is_beside) follow_and_hold();
  if (g.has_more_beside) let_next_begin();
  const int chunks = (g.num_inputs + BK - 1) / BK, row_steps = g.taps_x * chunks;
  const int units = (g.num_outputs + BN - 1) / BN * ((g.num_pixels + BM - 1) / BM) * g.num_splits;
  if (group == 0) {
#if CONSUMERS > 1  // one alone has as many registers as it can name
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
#endif
    if (threadIdx.x == 0) produce(base, full, empty, units, row_steps, chunks, &input_map, &high_map, &low_map, g);
    return;
  }
#if CONSUMERS > 1
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMERS == 2 ? 232 : 152));
#endif
#if PINGPONG
  if (group == CONSUMERS) asm volatile("bar.arrive 1, 256;" ::: "memory");  // the first one begins
#endif
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, f = lane / 4;
  // SPLIT: fragments' rows are pixels in another order, so that a warp's reads meet all banks of shared memory.
  const int local = SPLIT ? (f >> 1) + 4 * (f & 1) : f, rows = 64 * (group - 1) + 16 * warp;
  const u32 staging = base + STAGES * STAGE_BYTES + (threadIdx.x / 32 - 4) * (16 * PITCH * 4);
  Statistics statistics(base + STAGES * STAGE_BYTES);
  Turn turn;
  for (int k = blockIdx.x; k < units; k += gridDim.x) {
    const Unit unit(k, row_steps, g);
    float sum[BN / 2];
#pragma unroll
    for (int i = 0; i < BN / 2; ++i) sum[i] = 0.f;
    Range range;
    for (int step = unit.first; step < unit.last; ++step) {
      const u32 input = base + turn.stage * STAGE_BYTES, weight = input + INPUT_BYTES;
      barrier_wait(full + 8 * turn.stage, turn.parity);
#if SPLIT
      const int pixel = rows + local;
      float4 v[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {  // 16 channels i / 2, row i % 2: eight pixels on, with the same swizzle
        const u32 line = input + i / 4 * (INPUT_BYTES / 2) + (pixel + i % 2 * 8) * 128;
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
          : "=f"(v[i].x), "=f"(v[i].y), "=f"(v[i].z), "=f"(v[i].w)
          : "r"(line + (((i / 2 % 2 * 4 + lane % 4) ^ (pixel & 7)) * 16)) : "memory");
      }
      Fragments a;
      a.split(v);
      float factor[2];
      range.factors(RAISED - a.exponent[0], RAISED - a.exponent[1], sum, factor);
#if PINGPONG
      asm volatile("bar.sync %0, 256;" ::"r"(group) : "memory");
#endif
#pragma unroll
      for (int part = 0; part < BN / CHAIN; ++part) {
        const bool is_last = part == BN / CHAIN - 1;
        const u64 high = descriptor(weight + part * CHAIN * 128);
        float chain[CHAIN / 2];
        wgmma_fence();
#if PRODUCTS == 3
        const u64 low = descriptor(weight + WEIGHT_BYTES / 2 + part * CHAIN * 128);
        wgmma<false>(chain, a.low[0], high);
#pragma unroll
        for (int j = 1; j < 4; ++j) wgmma<true>(chain, a.low[j], high + 2 * j);
#pragma unroll
        for (int j = 0; j < 4; ++j) wgmma<true>(chain, a.high[j], low + 2 * j);
#endif
        wgmma<PRODUCTS == 3>(chain, a.high[0], high);
#pragma unroll
        for (int j = 1; j < 4; ++j) wgmma<true>(chain, a.high[j], high + 2 * j);
        wgmma_commit();
#if PINGPONG
        if (is_last) asm volatile("bar.arrive %0, 256;" ::"r"(group % CONSUMERS + 1) : "memory");
#endif
        wgmma_wait<0>();
        keep(chain);
        if (is_last && lane == 0) barrier_arrive(empty + 8 * turn.stage);
#pragma unroll
        for (int i = 0; i < CHAIN / 2; ++i) sum[part * CHAIN / 2 + i] += chain[i] * factor[i / 2 % 2];
      }
#else
      const u64 a = descriptor(input + 64 * (group - 1) * 128);
      const u64 b = TRANSPOSED_WEIGHT ? transposed_descriptor(weight, LINE_BLOCK) : descriptor(weight);
      keep(sum);
      wgmma_fence();
#pragma unroll
      for (int j = 0; j < 4; ++j) wgmma<false, TRANSPOSED_WEIGHT>(sum, a + 2 * j, b + (TRANSPOSED_WEIGHT ? 128 : 2) * j);
      wgmma_commit();
      wgmma_wait<1>();
      if (lane == 0 && step > unit.first) barrier_arrive(empty + 8 * (turn.stage ? turn.stage - 1 : STAGES - 1));
#endif
      turn.next();
    }
#if !SPLIT
    wgmma_wait<0>();
    keep(sum);
    if (lane == 0 && unit.last > unit.first) barrier_arrive(empty + 8 * (turn.stage ? turn.stage - 1 : STAGES - 1));
#endif
    if (k + gridDim.x >= units) let_next_begin();
    store(sum, range, unit, unit.row + rows, local, staging, out, weight_inverse, bias, residual, statistics, g);
    statistics.end_tile(unit.row);
  }
  if (g.is_beside) end_behind();
#if STATISTICS
  const int column_tiles = (g.num_outputs + BN - 1) / BN;  // a divisor of the number of programs
  statistics.finish(
    partial, blockIdx.x / column_tiles, gridDim.x / column_tiles, blockIdx.x % column_tiles * BN, g.num_pixels,
    g.num_outputs);
#endif
}
