// Sums that several warps of a block share.
//
// Macro SPLITS: how many.
#pragma once

// The first split's sums += those of the others, one split after the other. others: room in shared memory for a warp's
// sums, the lane's first. All threads of the block together; what lies there has been read.
template <int GROUPS>
__device__ __forceinline__ void add_splits(float (&sums)[GROUPS][4], float* others, int split) {
#pragma unroll 1
  for (int other = 1; other < SPLITS; ++other) {
    __syncthreads();
    if (split == other)
#pragma unroll
      for (int i = 0; i < GROUPS * 4; ++i) others[i * 32] = sums[i / 4][i % 4];
    __syncthreads();
    if (split == 0)
#pragma unroll
      for (int i = 0; i < GROUPS * 4; ++i) sums[i / 4][i % 4] += others[i * 32];
  }
}
