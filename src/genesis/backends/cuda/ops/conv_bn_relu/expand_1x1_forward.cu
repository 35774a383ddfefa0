// A wide 1x1 convolution with batch norm, residual and ReLU, once the statistics are known
// (kernels/expand_1x1.py):
//
//   y = act((x - mean(x)) W^T * inverse_std * gamma + beta + residual), and where it is positive, a bit per element
//
// A program keeps 256 rows of the weight in shared memory. What is subtracted comes from the same products as what it
// is subtracted from, so that in a channel that does not vary nothing is left of their rounding.
//
// Macros: STAGES tiles on the way; RESIDUAL: there is one.
#include "expand_1x1.cuh"

#define STAGE_BYTES (NARROW_BYTES + (RESIDUAL ? WIDE_BYTES : 0))
#define WEIGHT_BYTES (COLUMNS * 128)

__device__ __forceinline__ float load_parameter(const void* vector, int i, const Geometry& g) {
  return g.vector_bytes == 4 ? __ldg((const float*)vector + i) : low_half(__ldg((const u16*)vector + i));
}

// All ones in the halves that are above 0.
__device__ __forceinline__ u32 positive(u32 pair) {
  u32 r;
  asm("set.gt.u32.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(pair), "r"(0u));
  return r;
}

__device__ __forceinline__ u32 above_zero(u32 pair) {  // NaN stays NaN
  u32 r;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(pair), "r"(0u));
  return r;
}

// One product of 64 rows with the weight.
__device__ __forceinline__ void multiply(float (&sum)[COLUMNS / 2], u32 input, u32 weight) {
  const u64 a = descriptor(input), b = descriptor(weight);
#pragma unroll
  for (int i = 0; i < COLUMNS / 2; ++i) sum[i] = 0.f;
  keep(sum);
  wgmma_fence();
#pragma unroll
  for (int j = 0; j < 4; ++j) wgmma<false, false>(sum, a + 2 * j, b + 2 * j);
  wgmma_commit();
  wgmma_wait<0>();
  keep(sum);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) wide_forward(
    const __grid_constant__ TensorMap input_map, const __grid_constant__ TensorMap weight_map,
    const __grid_constant__ TensorMap residual_map, const __grid_constant__ TensorMap out_map,
    u32* __restrict__ passed, const float* __restrict__ input_mean, const float* __restrict__ inverse_std,
    const void* __restrict__ gamma, const void* __restrict__ beta, const __grid_constant__ Geometry g) {
  extern __shared__ unsigned char memory[];
  __shared__ __align__(8) u64 memory_of_barriers[BARRIERS + 1];
  __shared__ __align__(16) float mean[COLUMNS], scale[COLUMNS], shift[COLUMNS];
  const u32 weight = (shared_address(memory) + 1023) & ~1023u, staged = weight + WEIGHT_BYTES;
  const u32 base = staged + 2 * WIDE_BYTES;
  const u32 barriers = shared_address(memory_of_barriers), ready = barriers + 8 * BARRIERS;
  const int group = threadIdx.x / 128, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, quad = lane % 4;
  if (threadIdx.x == 0) barrier_init(ready, 1);
  begin_barriers(barriers);
  __syncthreads();
  follow_and_hold();
  const int blocks = g.num_outputs / COLUMNS, column = blockIdx.x % blocks * COLUMNS;
  const int program = blockIdx.x / blocks, programs = gridDim.x / blocks, tiles = (g.num_rows + ROWS - 1) / ROWS;
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) {
      barrier_expect(ready, WEIGHT_BYTES);
      load_box(weight, &weight_map, ready, 0, column, 0);
      for (Walk walk(0, tiles, program, programs); walk.index < walk.count; ++walk.index) {
        const u32 barrier = full_barrier(barriers, walk), input = base + walk.stage() * STAGE_BYTES;
        wait_for_stage(barriers, walk);
        barrier_expect(barrier, STAGE_BYTES);
        load_box(input, &input_map, barrier, 0, walk.tile() * ROWS, 0);
#if RESIDUAL
#pragma unroll
        for (int i = 0; i < COLUMNS / 64; ++i)
          load_box(input + NARROW_BYTES + i * BLOCK_BYTES, &residual_map, barrier, column + 64 * i,
                   walk.tile() * ROWS, 0);
#endif
      }
    }
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  const u32 out = staged + (group - 1) * WIDE_BYTES;
  float sum[COLUMNS / 2];
  barrier_wait(ready, 0);
  if (group == 1) {  // the mean, from 64 equal rows
    const Eight centre(input_mean, lane % 8 * 8, g.num_inputs);
    const float* c = centre.v;
    const uint4 rounded =
      make_uint4(pack_result(c[0], c[1]), pack_result(c[2], c[3]), pack_result(c[4], c[5]), pack_result(c[6], c[7]));
#pragma unroll
    for (int j = 0; j < 4; ++j) store_chunk(place(out, 16 * warp + 4 * j + lane / 8, lane % 8), rounded);
    fence_for_engines();
    wait_for_group(group);
    multiply(sum, out, weight);
    if (warp == 0 && lane < 4)
#pragma unroll
      for (int i = 0; i < COLUMNS / 8; ++i) {
        mean[8 * i + 2 * quad] = sum[4 * i];
        mean[8 * i + 2 * quad + 1] = sum[4 * i + 1];
      }
  }
  wait_for_both<1>();
  {
    const int k = threadIdx.x - 128;
    float rest = 0.f;  // of the mean: what its rounding left out
#pragma unroll 1
    for (int chunk = 0; chunk < 8; ++chunk) {
      const uint4 w = load_chunk(place(weight, k, chunk));
      const u32 pair[4] = {w.x, w.y, w.z, w.w};
      const Eight centre(input_mean, 8 * chunk, g.num_inputs);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const u32 rounded = pack_result(centre.v[2 * i], centre.v[2 * i + 1]);
        rest += low_half(pair[i]) * (centre.v[2 * i] - low_half(rounded));
        rest += high_half(pair[i]) * (centre.v[2 * i + 1] - high_half(rounded));
      }
    }
    mean[k] += rest;
    scale[k] = __ldg(inverse_std + column + k) * (gamma ? load_parameter(gamma, column + k, g) : 1.f);
    shift[k] = beta ? load_parameter(beta, column + k, g) : 0.f;
  }
  wait_for_both<2>();
  const int row_bits = g.num_outputs / 32;
  for (Walk walk(group - 1, tiles, program, programs); walk.index < walk.count; walk.index += 2) {
    const u32 input = base + walk.stage() * STAGE_BYTES;
    const int local = 16 * warp + lane / 4, row = walk.tile() * ROWS + local;
    wait_for_tile(barriers, walk);
    multiply(sum, input, weight);
#if !RESIDUAL
    release_stage(barriers, walk);
#endif
    if (threadIdx.x % 128 == 0) wait_for_reads();
    wait_for_group(group);
    u32 words[2][2];  // of each row, the quad's words q and 4 + q
#pragma unroll
    for (int j = 0; j < COLUMNS / 32; ++j) {
      u32 word[2] = {0u, 0u};
#pragma unroll
      for (int i = 4 * j; i < 4 * j + 4; ++i) {
        const int n = 8 * i + 2 * quad;
        const float2 m = *(const float2*)(mean + n), s = *(const float2*)(scale + n), t = *(const float2*)(shift + n);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float y0 = (sum[4 * i + 2 * r] - m.x) * s.x + t.x, y1 = (sum[4 * i + 2 * r + 1] - m.y) * s.y + t.y;
#if RESIDUAL
          u32 other;
          asm volatile("ld.shared.b32 %0, [%1];"
            : "=r"(other) : "r"(place(input + NARROW_BYTES, local + 8 * r, i) + 4 * quad) : "memory");
          y0 += low_half(other);
          y1 += high_half(other);
#endif
          u32 pair = pack_result(y0, y1);
          const u32 above = positive(pair);
          word[r] |= permute(above, 0x1010) & 1u << (i % 4 * 8 + 2 * quad);
          word[r] |= permute(above, 0x3232) & 2u << (i % 4 * 8 + 2 * quad);
          if (g.relu) pair = above_zero(pair);
          asm volatile("st.shared.b32 [%0], %1;" ::"r"(place(out, local + 8 * r, i) + 4 * quad), "r"(pair) : "memory");
        }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        word[r] |= __shfl_xor_sync(0xFFFFFFFFu, word[r], 1);
        word[r] |= __shfl_xor_sync(0xFFFFFFFFu, word[r], 2);
        if (j % 4 == quad) words[r][j / 4] = word[r];
      }
    }
#if RESIDUAL
    release_stage(barriers, walk);
#endif
    fence_for_engines();
    wait_for_group(group);
    if (threadIdx.x % 128 == 0) {
#pragma unroll
      for (int i = 0; i < COLUMNS / 64; ++i)
        store_box(&out_map, out + i * BLOCK_BYTES, column + 64 * i, walk.tile() * ROWS);
      commit_stores();
    }
    if (passed)
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          if (row + 8 * r < g.num_rows)
            passed[(long long)(row + 8 * r) * row_bits + column / 32 + 4 * half + quad] = words[r][half];
  }
  let_next_begin();
  if (threadIdx.x % 128 == 0) wait_for_stores();
}
