// Pixels of an image in shared memory, from where each tap reads those that it meets.
//
// A pixel begins at a multiple of 16 bytes, an odd one, so that eight neighbours lie in different banks.
//
// Macro ELEMENT: bytes of a number, 2 unless it is defined before.
#pragma once
#include "../overlap.cuh"
#include "../instructions.cuh"

#ifndef ELEMENT
#define ELEMENT 2
#endif

__device__ constexpr int odd_pitch(int channels) {  // of a pixel, in 16 bytes
  return (channels * ELEMENT + 15) / 16 | 1;
}

constexpr int PATCH_Y = (TILE_Y - 1) * STRIDE_Y + (TAPS_Y - 1) * DILATION_Y + 1;
constexpr int PATCH_X = (TILE_X - 1) * STRIDE_X + (TAPS_X - 1) * DILATION_X + 1;
constexpr int CHUNKS_X = TILE_X / 8, CHUNKS = TILE_Y / 2 * CHUNKS_X;  // of two rows of eight pixels, as tensor cores take

extern __shared__ uint4 patch[];

struct Corner { int image, row, column; };

// Where the tile of that number begins: there are so many in a row (strips) and in a column (bands) of an image.
__device__ __forceinline__ Corner tile_at(int unit, int strips, int bands) {
  const int rest = unit / strips, image = rest / bands;
  return {image, (rest - image * bands) * TILE_Y, (unit - rest * strips) * TILE_X};
}

// ROWS x COLUMNS pixels from (top, left) on, and SHARE of their IN_MEMORY channels from `first` on, into shared memory;
// zeros where there are none. So many bytes at ONCE.
template <int ROWS, int COLUMNS, int PIXEL, int SHARE, int IN_MEMORY, int ONCE, int BLOCK_SIZE>
__device__ __forceinline__ void copy_pixels(uint4* to, const char* __restrict__ from, int image, int top, int left,
                                            int height, int width, int first) {
  constexpr int COPIES = SHARE * ELEMENT / ONCE;
  for (int e = threadIdx.x; e < ROWS * COLUMNS * COPIES; e += BLOCK_SIZE) {
    const int c = e % COPIES, pixel = e / COPIES, i = pixel / COLUMNS, j = pixel % COLUMNS;
    const int y = top + i, x = left + j;
    const bool inside = (unsigned)y < (unsigned)height && (unsigned)x < (unsigned)width &&
                        first * ELEMENT + c * ONCE < IN_MEMORY * ELEMENT;
    const long long place =
        (((long long)image * height + y) * width + x) * (IN_MEMORY * ELEMENT) + first * ELEMENT + c * ONCE;
    copy<ONCE>(reinterpret_cast<char*>(to + pixel * PIXEL) + c * ONCE, inside ? from + place : from, inside);
  }
}
