// The input's gradient of a wide 1x1 convolution with batch norm (kernels/expand_1x1.py):
//
//   grad_input = g (rows x K) * scaled (K x C) + x~ (rows x C) * projection (C x C) - constant
//
// g: grad where `passed` has a bit (everywhere, if it is null); x~: the input less its mean. The second operands stay in
// shared memory. Tiles are taken from the last to the first: those the kernel before has read last are in the cache.
//
// Macros: STAGES tiles on the way.
#include "expand_1x1.cuh"

#define STAGE_BYTES (NARROW_BYTES + WIDE_BYTES)
#define SCALED_BYTES (COLUMNS * 128)
#define PROJECTION_BYTES (64 * 128)

extern "C" __global__ void __launch_bounds__(THREADS, 1) wide_input_grad(
    const __grid_constant__ TensorMap input_map, const __grid_constant__ TensorMap grad_map,
    const __grid_constant__ TensorMap scaled_map, const __grid_constant__ TensorMap projection_map,
    const __grid_constant__ TensorMap out_map, const u32* __restrict__ passed, const float* __restrict__ mean,
    const float* __restrict__ constant, const __grid_constant__ Geometry g) {
  extern __shared__ unsigned char memory[];
  __shared__ __align__(8) u64 memory_of_barriers[BARRIERS + 1];
  const u32 scaled = (shared_address(memory) + 1023) & ~1023u, projection = scaled + SCALED_BYTES;
  const u32 staged = projection + PROJECTION_BYTES, base = staged + 2 * NARROW_BYTES;
  const u32 barriers = shared_address(memory_of_barriers), ready = barriers + 8 * BARRIERS;
  const int group = threadIdx.x / 128, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  if (threadIdx.x == 0) barrier_init(ready, 1);
  begin_barriers(barriers);
  __syncthreads();
  follow_and_hold();
  const int tiles = (g.num_rows + ROWS - 1) / ROWS;
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) {
      barrier_expect(ready, SCALED_BYTES + PROJECTION_BYTES);
      load_box(scaled, &scaled_map, ready, 0, 0, 0);
      load_box(projection, &projection_map, ready, 0, 0, 0);
      for (Walk walk(0, tiles, blockIdx.x, gridDim.x); walk.index < walk.count; ++walk.index) {
        const u32 barrier = full_barrier(barriers, walk), input = base + walk.stage() * STAGE_BYTES;
        const int row = (tiles - 1 - walk.tile()) * ROWS;
        wait_for_stage(barriers, walk);
        barrier_expect(barrier, STAGE_BYTES);
        load_box(input, &input_map, barrier, 0, row, 0);
#pragma unroll
        for (int i = 0; i < COLUMNS / 64; ++i)
          load_box(input + NARROW_BYTES + i * BLOCK_BYTES, &grad_map, barrier, 64 * i, row, 0);
      }
    }
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  const Eight centre(mean, lane % 8 * 8, g.num_inputs);
  float less[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int channel = i / 2 * 8 + lane % 4 * 2 + i % 2;
    less[i] = channel < g.num_inputs ? __ldg(constant + channel) : 0.f;
  }
  const u32 out = staged + (group - 1) * NARROW_BYTES;
  const u64 second = transposed_descriptor(scaled, SCALED_BYTES);
  const u64 third = transposed_descriptor(projection, PROJECTION_BYTES);
  barrier_wait(ready, 0);
  Walk walk(group - 1, tiles, blockIdx.x, gridDim.x);
  Bits next;
  if (passed && walk.index < walk.count) next.load(passed, (tiles - 1 - walk.tile()) * ROWS + 16 * warp, 0, g);
  for (; walk.index < walk.count; walk.index += 2) {
    const u32 input = base + walk.stage() * STAGE_BYTES, grad = input + NARROW_BYTES;
    const int row = (tiles - 1 - walk.tile()) * ROWS;
    const Bits bits = next;
    if (passed && walk.index + 2 < walk.count) next.load(passed, row - 2 * walk.step * ROWS + 16 * warp, 0, g);
    wait_for_tile(barriers, walk);
    if (passed) {
#pragma unroll
      for (int r = 0; r < 16; ++r) {
        const u32 address = place(grad, 16 * warp + r, lane);
        uint4 v = load_chunk(address);
        keep_set(v, bits.of_row(r));
        store_chunk(address, v);
      }
    }
    subtract(input, 16 * warp, centre);
    fence_for_engines();
    wait_for_group(group);
    float sum[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) sum[i] = -less[i / 4 * 2 + i % 2];
    keep(sum);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < COLUMNS / 16; ++j)
      wgmma<false, true>(sum, descriptor(grad + j / 4 * BLOCK_BYTES) + 2 * (j % 4), second + 128 * j);
#pragma unroll
    for (int j = 0; j < 4; ++j) wgmma<false, true>(sum, descriptor(input) + 2 * j, third + 128 * j);
    wgmma_commit();
    if (threadIdx.x % 128 == 0) wait_for_reads();
    wait_for_group(group);
    wgmma_wait<0>();
    keep(sum);
    release_stage(barriers, walk);
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const u32 address = place(out, 16 * warp + lane / 4 + 8 * r, i) + lane % 4 * 4;
        const u32 pair = pack_result(sum[4 * i + 2 * r], sum[4 * i + 2 * r + 1]);
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(pair) : "memory");
      }
    fence_for_engines();
    wait_for_group(group);
    if (threadIdx.x % 128 == 0) {
      store_box(&out_map, out, 0, row);
      commit_stores();
    }
  }
  let_next_begin();
  if (threadIdx.x % 128 == 0) wait_for_stores();
}
