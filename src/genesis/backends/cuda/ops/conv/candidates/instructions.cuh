// Tensor cores and asynchronous copies. (PTX ISA 7.0)
#pragma once
#include "conversions.cuh"

// From global to shared memory: the first so many of 16 bytes, and zeros after them.
__device__ __forceinline__ void copy_up_to_16(void* to, const void* from, int bytes) {
  const u32 address = (u32)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
}

// 16 bytes; zeros if they are not inside.
__device__ __forceinline__ void copy_16(void* to, const void* from, bool inside) { copy_up_to_16(to, from, inside ? 16 : 0); }

// As many bytes as can be copied at once: 4, 8 or 16.
template <int BYTES>
__device__ __forceinline__ void copy(void* to, const void* from, bool inside) {
  if constexpr (BYTES == 16) {
    copy_16(to, from, inside);
  } else {
    const u32 address = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(address), "l"(from), "r"(inside ? BYTES : 0),
                 "n"(BYTES)
                 : "memory");
  }
}

__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// What was copied since the last time is one group; waiting for all groups but the last NUMBER.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int NUMBER>
__device__ __forceinline__ void wait_for_copies_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(NUMBER) : "memory");
}

// The low halves of two words, or their high halves.
__device__ __forceinline__ u32 paired(u32 first, u32 second, bool high) {
  return __byte_perm(first, second, high ? 0x7632 : 0x5410);
}

// Matrices of 8 x 8 in shared memory: lanes 8 i to 8 i + 7 point to the rows of matrix i, 16 bytes each. Lane 4 g + t gets
// of each the columns 2 t, 2 t + 1 of row g.
__device__ __forceinline__ void load_matrices(u32 (&found)[4], const uint4* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(found[0]), "=r"(found[1]), "=r"(found[2]), "=r"(found[3])
               : "r"((u32)__cvta_generic_to_shared(row))
               : "memory");
}

__device__ __forceinline__ void load_matrices(u32 (&found)[2], const uint4* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(found[0]), "=r"(found[1])
               : "r"((u32)__cvta_generic_to_shared(row))
               : "memory");
}

// The same, transposed: the rows 2 t, 2 t + 1 of column g.
__device__ __forceinline__ void load_transposed(u32 (&found)[4], const uint4* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(found[0]), "=r"(found[1]), "=r"(found[2]), "=r"(found[3])
               : "r"((u32)__cvta_generic_to_shared(row))
               : "memory");
}

__device__ __forceinline__ void load_transposed(u32 (&found)[2], const uint4* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(found[0]), "=r"(found[1])
               : "r"((u32)__cvta_generic_to_shared(row))
               : "memory");
}

// sums (16 x 8) += left (16 x 16) * right (16 x 8), by a warp: lane 4 g + t has of
//
//   sums   rows g, g + 8, columns 2 t, 2 t + 1;      left: rows g, g + 8, columns 2 t, 2 t + 1, then 2 t + 8, 2 t + 9
//   right  rows 2 t, 2 t + 1, then 2 t + 8, 2 t + 9; column g
template <bool BF16>
__device__ __forceinline__ void multiply_16(float (&sums)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  if constexpr (BF16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

// The same with the first eight columns of left, the first eight rows of right.
template <bool BF16>
__device__ __forceinline__ void multiply_8(float (&sums)[4], u32 a0, u32 a1, u32 b0) {
  if constexpr (BF16) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(b0));
  } else {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(b0));
  }
}
