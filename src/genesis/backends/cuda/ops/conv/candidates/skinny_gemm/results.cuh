// A block's tile of results: sums over lanes, then over warps in shared memory, always in the same order; epilogue.
//
// Macros: DTYPE 0 float32 | 1 float16 | 2 bfloat16; ROWS, COLUMNS: results of a thread, powers of two; BIAS, RESIDUAL,
// RELU: of the epilogue.
#pragma once
#include "../overlap.cuh"
#include "../channels.cuh"

extern __shared__ __align__(16) float memory[];

constexpr int SUMS = ROWS * COLUMNS;

// Sums of COUNT results over the lanes that differ in the bits BIT .. END / 2. Each step halves how many a lane has: it
// hands one half to its neighbour, and gets the other half's. From one result on, both lanes have its sum.
template <int COUNT, int BIT, int END>
__device__ __forceinline__ void add_lanes(float (&sums)[SUMS], int& place, bool& is_owner) {
  if constexpr (BIT < END) {
    constexpr int HALF = COUNT / 2;
    const bool upper = threadIdx.x & BIT;
    if constexpr (HALF > 0) {
#pragma unroll
      for (int i = 0; i < HALF; ++i) {
        const float mine = upper ? sums[HALF + i] : sums[i], other = upper ? sums[i] : sums[HALF + i];
        sums[i] = mine + __shfl_xor_sync(0xFFFFFFFFu, other, BIT);
      }
      if (upper) place += HALF;
      add_lanes<HALF, 2 * BIT, END>(sums, place, is_owner);
    } else {
      sums[0] += __shfl_xor_sync(0xFFFFFFFFu, sums[0], BIT);
      is_owner = is_owner && !upper;
      add_lanes<COUNT, 2 * BIT, END>(sums, place, is_owner);
    }
  }
}

// PARTS of a sum lie side by side in shared memory. A result is at (row, column) of rows of PITCH in memory.
template <int TILE_ROWS, int TILE_COLUMNS, int PITCH, int PARTS, int NUM_THREADS>
struct Results {
  static constexpr int TILE = TILE_ROWS * TILE_COLUMNS, EACH = (TILE + NUM_THREADS - 1) / NUM_THREADS;
  int first_row, first_column, num_rows;
  float added[EACH], more[EACH];  // bias and residual: loaded ahead, while the sums are under way

  __device__ __forceinline__ Results(int first_row, int first_column, int num_rows, const char* __restrict__ bias,
                                     const char* __restrict__ residual)
      : first_row(first_row), first_column(first_column), num_rows(num_rows) {
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      added[i] = more[i] = 0.f;
      if (!is_inside(i)) continue;
      if (BIAS) added[i] = value_at(bias, first_column + place(i) % TILE_COLUMNS);
      if (RESIDUAL) more[i] = value_at(residual, index(i));
    }
  }

  __device__ __forceinline__ static int place(int i) { return threadIdx.x + i * NUM_THREADS; }
  __device__ __forceinline__ long long index(int i) const {
    return (long long)(first_row + place(i) / TILE_COLUMNS) * PITCH + first_column + place(i) % TILE_COLUMNS;
  }
  __device__ __forceinline__ bool is_inside(int i) const {
    return place(i) < TILE && first_row + place(i) / TILE_COLUMNS < num_rows &&
           first_column + place(i) % TILE_COLUMNS < PITCH;
  }

  // A part's sums of one thread, over the lanes that differ in the bits BIT .. END / 2. column(j): where column j lies.
  template <int BIT, int END, class Column>
  __device__ __forceinline__ static void put(float (&sums)[SUMS], int part, int row, const Column& column) {
    constexpr int SHARERS = END > BIT ? END / BIT : 1, LEFT = SUMS > SHARERS ? SUMS / SHARERS : 1;
    int first = 0;
    bool is_owner = true;
    add_lanes<SUMS, BIT, END>(sums, first, is_owner);
    if (!is_owner) return;
#pragma unroll
    for (int i = 0; i < LEFT; ++i) {
      const int n = first + i;
      memory[part * TILE + (row + n / COLUMNS) * TILE_COLUMNS + column(n % COLUMNS)] = sums[i];
    }
  }

  // Once all parts are there.
  __device__ __forceinline__ void write(char* __restrict__ out) const {
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      if (!is_inside(i)) continue;
      float result = memory[place(i)];
#pragma unroll
      for (int part = 1; part < PARTS; ++part) result += memory[part * TILE + place(i)];
      if (BIAS) result += added[i];
      if (RESIDUAL) result += more[i];
      const float results[1] = {RELU && result < 0.f ? 0.f : result};  // NaN stays NaN
      Channels<1> stored;
      stored.round(results);
      stored.store(out + index(i) * ELEMENT);
    }
  }
};
