// One asynchronous product of a warpgroup: d (64 x N, float32) = a (64 x 16) * b (16 x N) + d, or without d.
//
// a: registers or a descriptor of shared memory, b: a descriptor; both with their terms innermost (TRANSPOSED: with
// rows or columns innermost). Fragments: thread t of 128 holds rows 16 (t / 32) + t % 32 / 4 and 8 below; of d columns 8 i
// + 2 (t % 4) and the next, in d[4 i], d[4 i + 1] for the first row, d[4 i + 2], d[4 i + 3] for the second.
// Source: PTX ISA 8.0, "Asynchronous Warpgroup Level Matrix Instructions". KIND: "f16" or "bf16"; or TF32 is set, which
// makes it a (64 x 8) * b (8 x N) of float32, whose lower 13 bits are not looked at, from shared memory, never transposed.
#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;

// Two sums as elements of KIND.
__device__ __forceinline__ u32 pack_result(float low, float high) {
  u32 r;
  asm("cvt.rn." KIND "x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

// The lower 16 bits, of KIND, as float32.
__device__ __forceinline__ float widen(u32 v) {
  float r;
  asm("{\n.reg .b16 a;\ncvt.u16.u32 a, %1;\ncvt.f32." KIND " %0, a;\n}\n" : "=f"(r) : "r"(v));
  return r;
}

#if TF32
#define OPERANDS "k8.f32.tf32.tf32"
#define TRANSPOSITIONS(a, b) ""
#else
#define OPERANDS "k16.f32." KIND "." KIND
#define TRANSPOSITIONS(a, b) ", %" #a ", %" #b
#endif

// Places of sums in the text of an instruction, and the sums.
#define P4(a, b, c, d) "%" #a ", %" #b ", %" #c ", %" #d
#define P12 P4(0, 1, 2, 3) ", " P4(4, 5, 6, 7) ", " P4(8, 9, 10, 11)
#define P16 P12 ", " P4(12, 13, 14, 15)
#define P20 P16 ", " P4(16, 17, 18, 19)
#define P28 P20 ", " P4(20, 21, 22, 23) ", " P4(24, 25, 26, 27)
#define P32 P28 ", " P4(28, 29, 30, 31)
#define P48 P32 ", " P4(32, 33, 34, 35) ", " P4(36, 37, 38, 39) ", " P4(40, 41, 42, 43) ", " P4(44, 45, 46, 47)
#define P64 P48 ", " P4(48, 49, 50, 51) ", " P4(52, 53, 54, 55) ", " P4(56, 57, 58, 59) ", " P4(60, 61, 62, 63)
#define P80 P64 ", " P4(64, 65, 66, 67) ", " P4(68, 69, 70, 71) ", " P4(72, 73, 74, 75) ", " P4(76, 77, 78, 79)
#define P96 P80 ", " P4(80, 81, 82, 83) ", " P4(84, 85, 86, 87) ", " P4(88, 89, 90, 91) ", " P4(92, 93, 94, 95)
#define P112 P96 ", " P4(96, 97, 98, 99) ", " P4(100, 101, 102, 103) ", " P4(104, 105, 106, 107) ", " P4(108, 109, 110, 111)
#define P128 P112 ", " P4(112, 113, 114, 115) ", " P4(116, 117, 118, 119) ", " P4(120, 121, 122, 123) ", " P4(124, 125, 126, 127)
#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D8(i) D4(i), D4(i + 4)
#define D16(i) D8(i), D8(i + 8)
#define D32(i) D16(i), D16(i + 16)
#define D64(i) D32(i), D32(i + 32)
#define D128(i) D64(i), D64(i + 64)

// The first operand from registers. FIRST to SEVENTH: places of what comes after the sums.
#define WGMMA(COLUMNS, SUMS, PLACES, FIRST, SECOND, THIRD, FOURTH, FIFTH, SIXTH, SEVENTH, ...)                      \
  template <bool ADD, bool TRANSPOSED = false>                                                                      \
  __device__ __forceinline__ void wgmma(float (&d)[SUMS], const u32 (&a)[4], u64 b) {                               \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #SIXTH ", 0;\n"                                               \
                 "wgmma.mma_async.sync.aligned.m64n" #COLUMNS OPERANDS " {" PLACES "}, {%" #FIRST ", %" #SECOND     \
                 ", %" #THIRD ", %" #FOURTH "}, %" #FIFTH ", p, 1, 1, %" #SEVENTH ";\n}\n"                          \
                 : __VA_ARGS__                                                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"((int)ADD), "n"((int)TRANSPOSED));        \
  }
WGMMA(64, 32, P32, 32, 33, 34, 35, 36, 37, 38, D32(0))
WGMMA(128, 64, P64, 64, 65, 66, 67, 68, 69, 70, D64(0))
WGMMA(192, 96, P96, 96, 97, 98, 99, 100, 101, 102, D64(0), D32(64))
WGMMA(256, 128, P128, 128, 129, 130, 131, 132, 133, 134, D128(0))
#undef WGMMA

// Both operands from shared memory. FIRST to FOURTH: places of what comes after the sums.
#define WGMMA(COLUMNS, SUMS, PLACES, FIRST, SECOND, THIRD, FOURTH, ...)                                             \
  template <bool TRANSPOSED_A, bool TRANSPOSED_B>                                                                   \
  __device__ __forceinline__ void wgmma(float (&d)[SUMS], u64 a, u64 b) {                                           \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #COLUMNS OPERANDS " {" PLACES "}, %" #FIRST ", %" #SECOND         \
                 ", 1, 1, 1" TRANSPOSITIONS(THIRD, FOURTH) ";\n"                                                    \
                 : __VA_ARGS__                                                                                      \
                 : "l"(a), "l"(b), "n"((int)TRANSPOSED_A), "n"((int)TRANSPOSED_B));                                 \
  }
WGMMA(24, 12, P12, 12, 13, 14, 15, D8(0), D4(8))
WGMMA(32, 16, P16, 16, 17, 18, 19, D16(0))
WGMMA(40, 20, P20, 20, 21, 22, 23, D16(0), D4(16))
WGMMA(56, 28, P28, 28, 29, 30, 31, D16(0), D8(16), D4(24))
WGMMA(64, 32, P32, 32, 33, 34, 35, D32(0))
WGMMA(128, 64, P64, 64, 65, 66, 67, D64(0))
WGMMA(192, 96, P96, 96, 97, 98, 99, D64(0), D32(64))
WGMMA(224, 112, P112, 112, 113, 114, 115, D64(0), D32(64), D16(96))
WGMMA(256, 128, P128, 128, 129, 130, 131, D128(0))

// What else asynchronous products need: fences, groups, and that the compiler leaves their registers alone meanwhile.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
template <int N>
__device__ __forceinline__ void keep(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// A tile of shared memory with rows of 128 bytes, the terms innermost, swizzled as the copy engine does (128 bytes): by
// the addresses themselves, so that a tile may begin at any row. eight_rows: bytes from a group of eight rows to the next.
__device__ __forceinline__ u64 descriptor(u32 address, u32 eight_rows = 1024) {
  return (u64)((address & 0x3FFFF) >> 4) | ((u64)1 << 16) | ((u64)(eight_rows >> 4) << 32) | ((u64)1 << 62);
}

// The same with the columns innermost: blocks of 64 columns, block_bytes apart, a row of 128 bytes per term.
__device__ __forceinline__ u64 transposed_descriptor(u32 address, u32 block_bytes) {
  return (u64)((address & 0x3FFFF) >> 4) | ((u64)(block_bytes >> 4) << 16) | ((u64)64 << 32) | ((u64)1 << 62);
}
