// Sums over rows for the statistics of a wide 1x1 convolution (kernels/expand_1x1.py):
//
//   partial (part, C + 1, C) = sum of d d^T, and below it the sum of d,   d = x - x[0]
//
// As expand_1x1_products.cu, with one small tile that is both operands.
//
// Macros: STAGES tiles on the way.
#include "expand_1x1.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1) wide_gram(
    const __grid_constant__ TensorMap input_map, float* __restrict__ partial, const u16* __restrict__ x,
    const __grid_constant__ Geometry g) {
  extern __shared__ unsigned char memory[];
  __shared__ __align__(8) u64 memory_of_barriers[BARRIERS];
  __shared__ float totals[32][64];  // of each quarter of a warp
  const u32 base = (shared_address(memory) + 1023) & ~1023u;
  const u32 barriers = shared_address(memory_of_barriers);
  const int group = threadIdx.x / 128, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  begin_barriers(barriers);
  __syncthreads();
  follow_and_hold();
  const int tiles = (g.num_rows + ROWS - 1) / ROWS;
  if (group == 0) {
    if (threadIdx.x == 0) {
      for (Walk walk(0, tiles, blockIdx.x, gridDim.x); walk.index < walk.count; ++walk.index) {
        wait_for_stage(barriers, walk);
        barrier_expect(full_barrier(barriers, walk), NARROW_BYTES);
        load_box(base + walk.stage() * NARROW_BYTES, &input_map, full_barrier(barriers, walk), 0, walk.tile() * ROWS, 0);
      }
    }
    return;
  }
  float origin[8], total[8], sum[32];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int channel = lane % 8 * 8 + i;
    origin[i] = channel < g.num_inputs ? low_half(__ldg(x + channel)) : 0.f;
    total[i] = 0.f;
  }
#pragma unroll
  for (int i = 0; i < 32; ++i) sum[i] = 0.f;
  for (Walk walk(group - 1, tiles, blockIdx.x, gridDim.x); walk.index < walk.count; walk.index += 2) {
    const u32 input = base + walk.stage() * NARROW_BYTES;
    const int left = g.num_rows - walk.tile() * ROWS;
    wait_for_tile(barriers, walk);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int row = 16 * warp + 4 * j + lane / 8;
      const u32 address = place(input, row, lane % 8);
      uint4 v = load_chunk(address);
      const u32 pair[4] = {v.x, v.y, v.z, v.w};
      float d[8];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        d[2 * i] = row < left ? low_half(pair[i]) - origin[2 * i] : 0.f;
        d[2 * i + 1] = row < left ? high_half(pair[i]) - origin[2 * i + 1] : 0.f;
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) total[i] += d[i];
      v = make_uint4(pack_result(d[0], d[1]), pack_result(d[2], d[3]), pack_result(d[4], d[5]), pack_result(d[6], d[7]));
      store_chunk(address, v);
    }
    fence_for_engines();
    wait_for_group(group);
    const u64 both = transposed_descriptor(input, BLOCK_BYTES);
    keep(sum);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < ROWS / 16; ++j) wgmma<true, true>(sum, both + 128 * j, both + 128 * j);
    wgmma_commit();
    wgmma_wait<0>();
    keep(sum);
    release_stage(barriers, walk);
  }
  let_next_begin();
  const int thread = threadIdx.x - 128;
#pragma unroll
  for (int i = 0; i < 8; ++i) totals[thread / 8][lane % 8 * 8 + i] = total[i];
  wait_for_both<1>();
  float* out = partial + (long long)blockIdx.x * (g.num_inputs + 1) * g.num_inputs;
  if (thread < g.num_inputs) {
    float whole = 0.f;
#pragma unroll
    for (int i = 0; i < 32; ++i) whole += totals[i][thread];
    out[g.num_inputs * g.num_inputs + thread] = whole;
  }
  float* shared = (float*)(memory + (base - shared_address(memory)));  // all tiles have been read
  if (group == 2)
#pragma unroll
    for (int i = 0; i < 32; ++i) shared[i * 128 + thread % 128] = sum[i];
  wait_for_both<2>();
  if (group == 1) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int channel = 16 * warp + lane / 4 + 8 * r, column = 8 * i + lane % 4 * 2, k = 4 * i + 2 * r;
        const float2 pair = make_float2(
          sum[k] + shared[k * 128 + thread], sum[k + 1] + shared[(k + 1) * 128 + thread]);
        if (channel < g.num_inputs && column < g.num_inputs)
          *(float2*)(out + channel * g.num_inputs + column) = pair;
      }
  }
}
