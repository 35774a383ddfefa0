// Barriers in shared memory, and copies of the tensor memory accelerator (TMA): loads complete on a barrier, stores in
// groups.
#pragma once
#include "../overlap.cuh"
#include "walk.cuh"

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct alignas(64) TensorMap {
  char bytes[128];
};

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void barrier_init(u32 barrier, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count));
}
__device__ __forceinline__ void fence_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void barrier_expect(u32 barrier, u32 num_bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(num_bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// When this thread's asynchronous copies are there, those of threads, not of the engine.
__device__ __forceinline__ void barrier_arrive_behind_copies(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
  asm volatile(
    "{\n.reg .pred p;\nAGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
    "@p bra DONE;\nbra AGAIN;\nDONE:\n}\n"
    ::"r"(barrier), "r"(parity) : "memory");
}

__device__ __forceinline__ void wait_for_group(int group) {  // the 128 threads of warpgroup 1 or 2
  asm volatile("bar.sync %0, 128;" ::"r"(group) : "memory");
}

// Pixels from (image, row, column) on, in the map's order and steps, each shifted by a tap's offset; some channels.
__device__ __forceinline__ void load_pixels(
    u32 target, const TensorMap* map, u32 barrier, int channel, int column, int row, int image, int right, int down) {
  asm volatile(
    "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
    "[%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};"
    ::"r"(target), "l"((u64)map), "r"(barrier), "r"(channel), "r"(column), "r"(row), "r"(image), "h"((u16)right),
      "h"((u16)down) : "memory");
}

__device__ __forceinline__ void load_box(u32 target, const TensorMap* map, u32 barrier, int x, int y, int z) {
  asm volatile(
    "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
    ::"r"(target), "l"((u64)map), "r"(barrier), "r"(x), "r"(y), "r"(z) : "memory");
}

__device__ __forceinline__ void load_box(
    u32 target, const TensorMap* map, u32 barrier, int channel, int column, int row, int image) {
  asm volatile(
    "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
    "[%0], [%1, {%3, %4, %5, %6}], [%2];"
    ::"r"(target), "l"((u64)map), "r"(barrier), "r"(channel), "r"(column), "r"(row), "r"(image) : "memory");
}

// From shared memory to a box of an array; what lies outside of the array is left out.
__device__ __forceinline__ void store_box(const TensorMap* map, u32 source, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];"
    ::"l"((u64)map), "r"(x), "r"(y), "r"(z), "r"(source) : "memory");
}
__device__ __forceinline__ void store_box(
    const TensorMap* map, u32 source, int channel, int column, int row, int image) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4}], [%5];"
    ::"l"((u64)map), "r"(channel), "r"(column), "r"(row), "r"(image), "r"(source) : "memory");
}
// What was written to shared memory is seen by matrix instructions and by the copy engine.
__device__ __forceinline__ void fence_for_engines() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Their sources may be written again.
__device__ __forceinline__ void wait_for_reads() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void wait_for_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
