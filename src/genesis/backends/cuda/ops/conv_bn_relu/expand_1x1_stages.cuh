// How a loading thread and two warpgroups that take tiles in turn share STAGES places in shared memory.
//
// Each stage has an empty barrier. If their number is odd, a stage goes from one warpgroup to the other, and each has a
// full barrier of its own there: a parity cannot tell a round from the last but one, so with one for both a warpgroup
// that is ahead would take the other's tile, still on its way, for its own.
#pragma once
#include "walk.cuh"

#define FULL_BARRIERS (STAGES % 2 ? 2 * STAGES : STAGES)
#define BARRIERS (FULL_BARRIERS + STAGES)

__device__ __forceinline__ u32 empty_barriers(u32 barriers) { return barriers + 8 * FULL_BARRIERS; }
__device__ __forceinline__ u32 full_barrier(u32 barriers, const Walk& walk) {
  return barriers + 8 * (walk.index % FULL_BARRIERS);
}
__device__ __forceinline__ void wait_for_tile(u32 barriers, const Walk& walk) {
  barrier_wait(full_barrier(barriers, walk), walk.index / FULL_BARRIERS & 1);
}
__device__ __forceinline__ void wait_for_stage(u32 barriers, const Walk& walk) {
  barrier_wait(empty_barriers(barriers) + 8 * walk.stage(), walk.parity() ^ 1);
}
__device__ __forceinline__ void release_stage(u32 barriers, const Walk& walk) {  // once by each warp
  if (threadIdx.x % 32 == 0) barrier_arrive(empty_barriers(barriers) + 8 * walk.stage());
}

__device__ __forceinline__ void begin_barriers(u32 barriers) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < FULL_BARRIERS; ++i) barrier_init(barriers + 8 * i, 1);
    for (int i = 0; i < STAGES; ++i) barrier_init(empty_barriers(barriers) + 8 * i, 4);
    fence_barriers();
  }
}
