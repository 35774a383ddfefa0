// What becomes of a tile's sums where outputs are the products' rows, 64 of them, and pixels their columns: bias, ReLU,
// statistics, and the way to memory.
//
// Macros: BN pixels of a tile; CONSUMERS warpgroups, 2, behind LOADERS that load; TF32, or KIND "f16" | "bf16";
// STATISTICS: of each output, too (16 bits only); tiles are whole then.
#pragma once
#include "copy_engine.cuh"
#include "wgmma.cuh"

// Over the four lanes that have a row's columns.
__device__ __forceinline__ float sum_of_quad(float v) {
  v += __shfl_xor_sync(0xFFFFFFFFu, v, 1);
  return v + __shfl_xor_sync(0xFFFFFFFFu, v, 2);
}

#if STATISTICS
// Mean and sum of squared deviations of each output, of a program's tiles as they are stored.
//
// Summed are differences from a pivot, the mean of the warpgroup's first tile as a number of KIND: where all values lie
// far from 0, they are small and exact. (Chan, Golub & LeVeque 1979; the same order every time.)
struct Statistics {
  int num_tiles = 0;
  float pivot[2] = {0.f, 0.f}, total[2] = {0.f, 0.f}, squares[2] = {0.f, 0.f};  // of the thread's two rows

  __device__ __forceinline__ void begin_tile(const float (&sum)[BN / 2], const float (&bias)[2]) {
    if (num_tiles++ > 0) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float all = 0.f;
#pragma unroll
      for (int i = 0; i < BN / 8; ++i) all += sum[4 * i + 2 * r] + sum[4 * i + 2 * r + 1];
      const float mean = sum_of_quad(all) / BN + bias[r];
      pivot[r] = widen(pack_result(mean, mean));
    }
  }

  // Two pixels, as they are stored.
  __device__ __forceinline__ void add(int r, u32 pair) {
    const float x = widen(pair) - pivot[r], y = widen(pair >> 16) - pivot[r];
    total[r] += x + y;
    squares[r] += x * x + y * y;
  }

  // partial (3, part, output): pivot, mean - pivot, sum of (y - mean)^2. All consumers together.
  __device__ __forceinline__ void finish(float* partial, int part, int num_parts, int block, int num_outputs) const {
    __shared__ float pivots[CONSUMERS][64], offsets[CONSUMERS][64], deviations[CONSUMERS][64], counts[CONSUMERS];
    const int lane = threadIdx.x % 32, consumer = threadIdx.x / 128 - LOADERS;
    const float own = (float)num_tiles * BN;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = sum_of_quad(total[r]), offset = sum / fmaxf(own, 1.f);
      const float deviation = sum_of_quad(squares[r]) - sum * offset;
      const int row = threadIdx.x / 32 % 4 * 16 + lane / 4 + 8 * r;
      if (lane % 4 == 0) {
        pivots[consumer][row] = pivot[r];
        offsets[consumer][row] = offset;
        deviations[consumer][row] = deviation;
      }
    }
    counts[consumer] = own;
    asm volatile("bar.sync 5, %0;" ::"n"(128 * CONSUMERS) : "memory");
    const int n = threadIdx.x - 128 * LOADERS;
    if (n >= 64 || block * 64 + n >= num_outputs) return;
    const float origin = pivots[0][n], pixels = counts[0] + counts[1];
    const float other = pivots[1][n] - origin + offsets[1][n];
    const float mean = (counts[0] * offsets[0][n] + counts[1] * other) / pixels;
    const float first_off = offsets[0][n] - mean, second_off = other - mean;
    float* out = partial + (long long)part * num_outputs + block * 64 + n;
    const long long plane = (long long)num_parts * num_outputs;
    out[0] = origin;
    out[plane] = mean;
    out[2 * plane] = deviations[0][n] + deviations[1][n] + counts[0] * first_off * first_off +
                     counts[1] * second_off * second_off;
  }
};
#else
struct Statistics {
  __device__ __forceinline__ void begin_tile(const float (&)[BN / 2], const float (&)[2]) const {}
  __device__ __forceinline__ void add(int, u32) const {}
};
#endif

// Four 8x8 matrices of 16 bits, each transposed: lanes 8 i to 8 i + 7 give the places of the i-th one's lines.
__device__ __forceinline__ void store_transposed(u32 place, const u32 (&v)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
    ::"r"(place), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}

__device__ __forceinline__ float load_bias(const void* bias, int n) {
#if TF32
  return bias ? __ldg((const float*)bias + n) : 0.f;
#else
  return bias ? widen(__ldg((const u16*)bias + n)) : 0.f;
#endif
}

__device__ __forceinline__ float finished(float sum, float shift, bool relu) {
  const float y = sum + shift;
  return relu && y < 0.f ? 0.f : y;  // NaN stays NaN
}

#if !TF32
// The tile as the copy engine takes it to memory: a line of 128 bytes of each pixel, swizzled. By all of a warpgroup.
__device__ __forceinline__ void stage_tile(
    u32 target, const float (&sum)[BN / 2], const float (&shift)[2], bool relu, Statistics& statistics) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  // Of this lane: 16 bytes of a line, the warp's first or last eight outputs; lanes 8 to 15 have the latter.
  const u32 line = lane % 8 + lane / 16 * 8, place = line * 128 + ((2 * warp + lane / 8 % 2) ^ line % 8) * 16;
#pragma unroll
  for (int i = 0; i < BN / 16; ++i) {
    u32 pairs[4];
#pragma unroll
    for (int m = 0; m < 4; ++m) {  // row m % 2, pixels from 8 (m / 2) on
      const float* two = &sum[8 * i + 4 * (m / 2) + 2 * (m % 2)];
      pairs[m] = pack_result(finished(two[0], shift[m % 2], relu), finished(two[1], shift[m % 2], relu));
      statistics.add(m % 2, pairs[m]);
    }
    store_transposed(target + place + i * 2048, pairs);
  }
  fence_for_engines();
}
#endif
