// Mean and sum of squared deviations of each column of a program's tiles, as they are stored: forward.cu's epilogue.
//
// A warp has 16 rows of each tile, a lane four columns of every 32, in every fourth of those rows. Summed are differences
// from a pivot, the mean of the warp's rows in the program's first tile as a number of KIND: where all values lie far
// from 0, they are small and exact. At the end the sums of a column's lanes, then of its warps are put together (Chan,
// Golub & LeVeque 1979), in one order: the same result every time.
//
// Macros, as in forward.cu: BN, BM, CONSUMERS, KIND, PITCH.
#pragma once

#define WARPS (4 * CONSUMERS)

__device__ __forceinline__ float4 load_four(u32 place) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
    : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(place) : "memory");
  return v;
}
__device__ __forceinline__ void store_four(u32 place, float4 v) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};"
    ::"r"(place), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}
__device__ __forceinline__ float load_one(u32 place) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(place) : "memory");
  return v;
}

// Over the four lanes that have the same columns.
__device__ __forceinline__ float sum_of_rows(float v) {
  v += __shfl_xor_sync(FULL_WARP, v, 8);
  return v + __shfl_xor_sync(FULL_WARP, v, 16);
}

struct Statistics {
  u32 base, staging;  // of all warps: BN pivots each, behind the staging of all
  int num_tiles = 0, last_row = 0;
  float total[BN / 8], squares[BN / 8];  // of the differences: column c of the k-th 32 at 4 k + c

  __device__ __forceinline__ Statistics(u32 staging_of_all) {
    staging = staging_of_all;
    base = staging_of_all + WARPS * 16 * PITCH * 4;
#pragma unroll
    for (int i = 0; i < BN / 8; ++i) total[i] = squares[i] = 0.f;
  }

  __device__ __forceinline__ u32 pivots(int warp) const { return base + warp * BN * 4; }
  __device__ __forceinline__ u32 offsets(int warp) const { return staging + warp * 16 * PITCH * 4; }
  __device__ __forceinline__ u32 deviations(int warp) const { return offsets(warp) + BN * 4; }

  // The k-th 32 columns' pivots. In the first tile they are found, from the staged rows, of which there may be less than
  // 16, and the bias that these get: all 32 lanes together.
  __device__ __forceinline__ float4 pivot(int k, u32 staged, int num_rows, float4 bias) const {
    const int lane = threadIdx.x % 32;
    const u32 place = pivots(threadIdx.x / 32 - 4) + (32 * k + lane % 8 * 4) * 4;
    if (num_tiles == 0) {
      const int there = max(0, min(num_rows, 16));
      float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const float4 v = load_four(staged + ((4 * q + lane / 8) * PITCH + lane % 8 * 4) * 4);
        if (4 * q + lane / 8 < there) sum = make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w);
      }
      const float share = 1.f / max(there, 1);
      const u32 low = pack_result(sum_of_rows(sum.x) * share + bias.x, sum_of_rows(sum.y) * share + bias.y);
      const u32 high = pack_result(sum_of_rows(sum.z) * share + bias.z, sum_of_rows(sum.w) * share + bias.w);
      if (lane < 8) store_four(place, make_float4(widen(low), widen(low >> 16), widen(high), widen(high >> 16)));
      __syncwarp();
    }
    return load_four(place);
  }

  // Four columns of a row, as they are stored.
  __device__ __forceinline__ void add(int k, uint2 stored, float4 pivot) {
    const float y[4] = {widen(stored.x) - pivot.x, widen(stored.x >> 16) - pivot.y, widen(stored.y) - pivot.z,
                        widen(stored.y >> 16) - pivot.w};
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      total[4 * k + c] += y[c];
      squares[4 * k + c] += y[c] * y[c];
    }
  }

  __device__ __forceinline__ void end_tile(int row) {
    ++num_tiles;
    last_row = row;
  }

  // Of a warp's rows in all tiles, of which the last may be cut off.
  __device__ __forceinline__ int count(int warp, int num_pixels) const {
    return 16 * (num_tiles - 1) + max(0, min(num_pixels - last_row - 16 * warp, 16));
  }

  // partial (3, part, column): pivot, mean - pivot, sum of (y - mean)^2. All consumers together.
  __device__ __forceinline__ void finish(
      float* partial, int part, int num_parts, int column, int num_pixels, int num_outputs) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - 4;
    const float own = (float)max(count(warp, num_pixels), 1);
    __syncwarp();  // all have read what was staged
#pragma unroll
    for (int k = 0; k < BN / 32; ++k) {
      float offset[4], deviation[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float sum = sum_of_rows(total[4 * k + c]);
        offset[c] = sum / own;
        deviation[c] = sum_of_rows(squares[4 * k + c]) - sum * offset[c];
      }
      if (lane < 8) {
        const int at = (32 * k + lane * 4) * 4;
        store_four(offsets(warp) + at, make_float4(offset[0], offset[1], offset[2], offset[3]));
        store_four(deviations(warp) + at, make_float4(deviation[0], deviation[1], deviation[2], deviation[3]));
      }
    }
    asm volatile("bar.sync 3, %0;" ::"n"(128 * CONSUMERS) : "memory");
    for (int n = threadIdx.x - 128; n < BN && column + n < num_outputs; n += 128 * CONSUMERS) {
      const float origin = load_one(pivots(0) + n * 4);
      float mean = 0.f, sum = 0.f, rows = 0.f;
      for (int w = 0; w < WARPS; ++w) {
        const float there = (float)count(w, num_pixels);
        mean += there * (load_one(pivots(w) + n * 4) - origin + load_one(offsets(w) + n * 4));
        rows += there;
      }
      mean /= rows;
      for (int w = 0; w < WARPS; ++w) {
        const float off = load_one(pivots(w) + n * 4) - origin + load_one(offsets(w) + n * 4) - mean;
        sum += load_one(deviations(w) + n * 4) + (float)count(w, num_pixels) * off * off;
      }
      float* out = partial + (long long)part * num_outputs + column + n;
      const long long plane = (long long)num_parts * num_outputs;
      out[0] = origin;
      out[plane] = mean;
      out[2 * plane] = sum;
    }
  }
};
