// Sums over rows for the gradients of a wide 1x1 convolution with batch norm (kernels/expand_1x1.py):
//
//   partial (part, C + 1, K) = P = sum of x~ g^T, and below it the sum of g
//
// x~: the input less its mean; g: the gradient before the activation, which is grad where `passed` has a bit, and is
// written to grad_residual if that is wanted. Each program takes every so-manieth tile of rows; its warpgroups have a
// part each. One masks and centres a tile in its place in shared memory, a warp 64 columns of it, from where the matrix
// instructions take both operands, rows innermost.
//
// Macros: STAGES tiles on the way.
#include "expand_1x1.cuh"

#define STAGE_BYTES (NARROW_BYTES + WIDE_BYTES)

extern "C" __global__ void __launch_bounds__(THREADS, 1) wide_products(
    const __grid_constant__ TensorMap input_map, const __grid_constant__ TensorMap grad_map,
    float* __restrict__ partial, u16* __restrict__ grad_residual, const u32* __restrict__ passed,
    const float* __restrict__ mean, const __grid_constant__ Geometry g) {
  extern __shared__ unsigned char memory[];
  __shared__ __align__(8) u64 memory_of_barriers[BARRIERS];
  const u32 base = (shared_address(memory) + 1023) & ~1023u;
  const u32 barriers = shared_address(memory_of_barriers);
  const int group = threadIdx.x / 128, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  begin_barriers(barriers);
  __syncthreads();
  follow_and_hold();
  const int blocks = g.num_outputs / COLUMNS, part = blockIdx.x / blocks, parts = gridDim.x / blocks;
  const int column = blockIdx.x % blocks * COLUMNS, tiles = (g.num_rows + ROWS - 1) / ROWS;
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) {
      for (Walk walk(0, tiles, part, parts); walk.index < walk.count; ++walk.index) {
        const u32 barrier = full_barrier(barriers, walk), input = base + walk.stage() * STAGE_BYTES;
        wait_for_stage(barriers, walk);
        barrier_expect(barrier, STAGE_BYTES);
        load_box(input, &input_map, barrier, 0, walk.tile() * ROWS, 0);
#pragma unroll
        for (int i = 0; i < COLUMNS / 64; ++i)
          load_box(input + NARROW_BYTES + i * BLOCK_BYTES, &grad_map, barrier, column + 64 * i, walk.tile() * ROWS, 0);
      }
    }
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  const Eight centre(mean, lane % 8 * 8, g.num_inputs);
  float sum[COLUMNS / 2], total[8];
#pragma unroll
  for (int i = 0; i < COLUMNS / 2; ++i) sum[i] = 0.f;
#pragma unroll
  for (int i = 0; i < 8; ++i) total[i] = 0.f;
  Walk walk(group - 1, tiles, part, parts);
  ColumnBits next;
  if (passed && walk.index < walk.count) next.load(passed, walk.tile() * ROWS, column + 64 * warp, g);
  for (; walk.index < walk.count; walk.index += 2) {
    const u32 input = base + walk.stage() * STAGE_BYTES, grad = input + NARROW_BYTES;
    const int first = walk.tile() * ROWS;
    const ColumnBits bits = next;
    if (passed && walk.index + 2 < walk.count)
      next.load(passed, first + 2 * walk.step * ROWS, column + 64 * warp, g);
    wait_for_tile(barriers, walk);
#pragma unroll
    for (int j = 0; j < ROWS / 4; ++j) {
      const int row = 4 * j + lane / 8, chunk = 8 * warp + lane % 8;
      const u32 address = place(grad, row, chunk);
      uint4 v = load_chunk(address);
      if (passed) {
        keep_set(v, bits.of_rows(j));
        store_chunk(address, v);
      }
      const u32 pair[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        total[2 * i] += low_half(pair[i]);
        total[2 * i + 1] += high_half(pair[i]);
      }
      if (grad_residual && first + row < g.num_rows)
        *(uint4*)(grad_residual + (long long)(first + row) * g.num_outputs + column + 8 * chunk) = v;
    }
    subtract(input, 16 * warp, centre);
    fence_for_engines();
    wait_for_group(group);
    const u64 a = transposed_descriptor(input, BLOCK_BYTES), b = transposed_descriptor(grad, BLOCK_BYTES);
    keep(sum);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < ROWS / 16; ++j) wgmma<true, true>(sum, a + 128 * j, b + 128 * j);
    wgmma_commit();
    wgmma_wait<0>();
    keep(sum);
    release_stage(barriers, walk);
  }
  let_next_begin();
  float* out = partial + (long long)(2 * part + group - 1) * (g.num_inputs + 1) * g.num_outputs + column;
#pragma unroll
  for (int i = 0; i < COLUMNS / 8; ++i)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int channel = 16 * warp + lane / 4 + 8 * r, k = 4 * i + 2 * r;
      if (channel < g.num_inputs)
        *(float2*)(out + (long long)channel * g.num_outputs + 8 * i + lane % 4 * 2) = make_float2(sum[k], sum[k + 1]);
    }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    total[i] += __shfl_xor_sync(0xFFFFFFFFu, total[i], 8);
    total[i] += __shfl_xor_sync(0xFFFFFFFFu, total[i], 16);
    if (lane < 8) out[(long long)g.num_inputs * g.num_outputs + 64 * warp + 8 * lane + i] = total[i];
  }
}
