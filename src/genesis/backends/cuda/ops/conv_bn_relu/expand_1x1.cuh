// What the kernels of a 1x1 convolution to more channels share: a loading thread, and two warpgroups that take tiles of
// 64 rows (pixels) in turn, each its own.
//
// Tiles lie in shared memory as the copy engine writes them: blocks of 64 columns, 128 bytes per row, swizzled.
#pragma once
#define KIND "bf16"
#include "copy_engine.cuh"
#include "expand_1x1_stages.cuh"
#include "wgmma.cuh"

#define ROWS 64
#define COLUMNS 256                           // outputs that a program takes
#define BLOCK_BYTES (ROWS * 128)              // 64 columns of a tile
#define NARROW_BYTES BLOCK_BYTES              // a tile of the input: up to 64 channels
#define WIDE_BYTES (COLUMNS / 64 * BLOCK_BYTES)
#define THREADS 384

struct Geometry {
  int num_rows, num_inputs, num_outputs;
  int vector_bytes;  // of an element of gamma and beta: 4 or, bfloat16, 2
  int relu;
};

template <int TIME>  // 1 or 2: a barrier for each time
__device__ __forceinline__ void wait_for_both() {
  __syncwarp();
  asm volatile("bar.sync %0, 256;" ::"n"(2 + TIME) : "memory");
}

// Eight columns of a row: 16 bytes.
__device__ __forceinline__ u32 place(u32 tile, int row, int chunk) {
  return tile + chunk / 8 * BLOCK_BYTES + row * 128 + ((chunk ^ row) & 7) * 16;
}
__device__ __forceinline__ uint4 load_chunk(u32 address) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
    : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
  return v;
}
__device__ __forceinline__ void store_chunk(u32 address, const uint4& v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
    ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

__device__ __forceinline__ float low_half(u32 v) { return __uint_as_float(v << 16); }
__device__ __forceinline__ float high_half(u32 v) { return __uint_as_float(v & 0xFFFF0000u); }

__device__ __forceinline__ u32 permute(u32 v, u32 selector) {
  u32 r;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(r) : "r"(v), "r"(selector));
  return r;
}

// Columns whose bit (of 8) is not set become 0.
__device__ __forceinline__ void keep_set(uint4& v, u32 bits) {
  // Four bits to the highest bits of four bytes, which prmt's selectors from 8 on spread over bytes.
  const u32 low = bits << 7 | bits << 14 | bits << 21 | bits << 28;
  const u32 high = bits << 3 | bits << 10 | bits << 17 | bits << 24;
  v.x &= permute(low, 0x9988);
  v.y &= permute(low, 0xBBAA);
  v.z &= permute(high, 0x9988);
  v.w &= permute(high, 0xBBAA);
}

// A warp's bits as they lie in memory: of so many words a row, 32 / WORDS rows at a time.
template <int WORDS>
__device__ __forceinline__ void load_bits(u32 (&word)[4], const u32* passed, int row, int column, const Geometry& g) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int m = row + 32 / WORDS * j + lane / WORDS;
    word[j] = m < g.num_rows ? __ldg(passed + ((long long)m * g.num_outputs + column) / 32 + lane % WORDS) : 0u;
  }
}

// The bits of 16 rows of COLUMNS columns.
struct Bits {
  u32 word[4];

  __device__ __forceinline__ void load(const u32* passed, int row, int column, const Geometry& g) {
    load_bits<8>(word, passed, row, column, g);
  }
  // Of this lane's eight columns in the r-th row.
  __device__ __forceinline__ u32 of_row(int r) const {
    const int lane = threadIdx.x % 32;
    return __shfl_sync(0xFFFFFFFFu, word[r / 4], r % 4 * 8 + lane / 4) >> 8 * (lane % 4) & 0xFFu;
  }
};

// The bits of ROWS rows of 64 columns.
struct ColumnBits {
  u32 word[4];

  __device__ __forceinline__ void load(const u32* passed, int row, int column, const Geometry& g) {
    load_bits<2>(word, passed, row, column, g);
  }
  // Of row 4 j + lane / 8, eight columns from 8 (lane % 8) on.
  __device__ __forceinline__ u32 of_rows(int j) const {
    const int lane = threadIdx.x % 32, source = 2 * (j % 4 * 4 + lane / 8) + lane % 8 / 4;
    return __shfl_sync(0xFFFFFFFFu, word[j / 4], source) >> 8 * (lane % 4) & 0xFFu;
  }
};

// Eight numbers of a vector of float32, 0 beyond its end.
struct Eight {
  float v[8];

  __device__ __forceinline__ Eight(const float* vector, int first, int size) {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = first + i < size ? __ldg(vector + first + i) : 0.f;
  }
};

// The warp's 16 rows of the input's tile, less the centre of this lane's eight channels.
__device__ __forceinline__ void subtract(u32 tile, int first_row, const Eight& centre) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const u32 address = place(tile, first_row + 4 * j + lane / 8, lane % 8);
    uint4 v = load_chunk(address);
    const float* c = centre.v;
    v.x = pack_result(low_half(v.x) - c[0], high_half(v.x) - c[1]);
    v.y = pack_result(low_half(v.y) - c[2], high_half(v.y) - c[3]);
    v.z = pack_result(low_half(v.z) - c[4], high_half(v.z) - c[5]);
    v.w = pack_result(low_half(v.w) - c[6], high_half(v.w) - c[7]);
    store_chunk(address, v);
  }
}

// To columns from x on of rows from y on.
__device__ __forceinline__ void store_box(const TensorMap* map, u32 source, int x, int y) {
  store_box(map, source, x, y, 0);
}
