// An image's pixels in shared memory, so that the matrix instructions read windows of them where they lie.
//
// A unit is 16 bytes: two neighbouring pixels of up to four channels, or one of up to eight; what is left of it is zeros.
// Eight units in a row are what the instructions call a core matrix: eight windows' first units, as neighbouring windows
// begin at neighbouring units. The next units of these windows, a chunk of their terms, are as many units further on: so
// windows overlap in shared memory and no pixel is there twice, but for stride 1, where a unit of two begins at each pixel.
//
// Where the stride is more than a unit's pixels, those between two windows' beginnings lie in planes of their own.
//
// A patch has the units that a tile's windows meet: of 8 columns by BR rows.
//
// Macros: CHANNELS of the image; TAPS_Y, TAPS_X, STRIDE_Y, STRIDE_X of the convolution; LEAD: pixels without a tap ahead of
// a window's first; GRANULE: bytes that are loaded at once, 2 or 4; BR rows of a tile.
#pragma once
#define LOADERS 1  // warpgroups, ahead of those that multiply
#define CONSUMERS 2
#define STAGES CONSUMERS  // patches on their way to them
#include "copy_engine.cuh"

constexpr int PIXELS = CHANNELS <= 4 ? 2 : 1;  // of a unit
constexpr int PLANES = STRIDE_X > PIXELS ? STRIDE_X / PIXELS : 1;
constexpr int ROW_CHUNKS = (LEAD + TAPS_X + PIXELS - 1) / PIXELS;  // of a window's row
constexpr int PLANE_UNITS = 8 + (ROW_CHUNKS - 1) * PIXELS / STRIDE_X;
constexpr int PITCH = PLANES * PLANE_UNITS;  // of a patch's rows, in units
constexpr int PATCH_ROWS = (BR - 1) * STRIDE_Y + TAPS_Y, PATCH_UNITS = PATCH_ROWS * PITCH;
constexpr int PATCH_BYTES = (PATCH_UNITS * 16 + 1023) / 1024 * 1024;
static_assert(PITCH <= 128, "a warpgroup loads whole rows");
static_assert(STRIDE_X % PIXELS == 0 || PIXELS % STRIDE_X == 0, "windows begin where units do");

// The unit at which a chunk of a row's first window lies.
__device__ constexpr int unit_of(int chunk) {
  return chunk * PIXELS % STRIDE_X / PIXELS * PLANE_UNITS + chunk * PIXELS / STRIDE_X;
}

struct Image {
  const u16* pixels;
  int height, width, padding_y, padding_x;
};

// A tile: 8 columns by BR rows of the result of an image.
struct Tile {
  int column, row, image;

  __device__ __forceinline__ Tile(int k, int row_tiles, int column_tiles)
      : column(k % column_tiles * 8), row(k / column_tiles % row_tiles * BR), image(k / (column_tiles * row_tiles)) {}
};

// A patch's rows as they are in memory, from the 16 bytes on in which they begin; RAW of them are on their way at once.
constexpr int RAW = 4;
constexpr int SPAN = ((PLANE_UNITS - 1) * STRIDE_X + PLANES * PIXELS) * CHANNELS * 2;  // bytes of a row
constexpr int PIECES = (SPAN + 13) / 16 + 1, RAW_PITCH = PIECES * 16, RAW_BYTES = PATCH_ROWS * RAW_PITCH;

struct Source {
  Image image;
  int row_bytes;
  long long num_bytes;

  __device__ __forceinline__ explicit Source(const Image& image, int num_images)
      : image(image), row_bytes(image.width * (CHANNELS * 2)), num_bytes((long long)num_images * image.height * row_bytes) {}
  __device__ __forceinline__ int top(const Tile& tile) const { return tile.row * STRIDE_Y - image.padding_y; }
  __device__ __forceinline__ int left(const Tile& tile) const { return tile.column * STRIDE_X - image.padding_x - LEAD; }
  // Where the patch of a tile begins, in the image or outside of it: bytes.
  __device__ __forceinline__ long long place(const Tile& tile) const {
    return ((long long)tile.image * image.height + top(tile)) * row_bytes + left(tile) * (CHANNELS * 2);
  }
};

// What is beside a row's pixels comes along, what is beside the images does not; neither is looked at.
__device__ __forceinline__ void copy_rows(u32 target, const Source& source, const Tile& tile) {
  constexpr long long FAR = 1 << 30;
  const long long place = source.place(tile);
  const char* start = (const char*)source.image.pixels + place;
  const int low = (int)max(-place, -FAR), end = (int)min(source.num_bytes - place, FAR);  // of the images, from there
  const int top = source.top(tile), misplaced = (int)place;
#pragma unroll
  for (int i = 0; i < (PATCH_ROWS * PIECES + 127) / 128; ++i) {
    const int e = threadIdx.x + 128 * i, row = e / PIECES, from = row * source.row_bytes;
    const int at = from - (misplaced + from & 15) + e % PIECES * 16;
    const bool is_there = e < PATCH_ROWS * PIECES && (unsigned)(top + row) < (unsigned)source.image.height;
    if (is_there && at >= low && at < end)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
        ::"r"(target + e * 16), "l"(start + at), "r"(min(end - at, 16)) : "memory");
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Rows to units; zeros where there is no pixel. A thread has a column of units, and of it every ROWS_AT_ONCE-th row.
constexpr int ROWS_AT_ONCE = 128 / PITCH, TURNS = (PATCH_ROWS + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
constexpr int PORTIONS = (TURNS + 7) / 8, AT_ONCE = (TURNS + PORTIONS - 1) / PORTIONS;  // turns: loads, then stores
constexpr int LOADS = (PIXELS * CHANNELS * 2 + GRANULE - 1) / GRANULE;                  // of a unit
__device__ __forceinline__ void make_units(u32 patch, u32 raw, const Source& source, const Tile& tile) {
  const int at = threadIdx.x % PITCH, first = threadIdx.x / PITCH;
  if (first >= ROWS_AT_ONCE) return;
  const int offset = at % PLANE_UNITS * STRIDE_X + at / PLANE_UNITS * PIXELS, x = source.left(tile) + offset;
  const bool is_inside[2] = {(unsigned)x < (unsigned)source.image.width, (unsigned)(x + 1) < (unsigned)source.image.width};
  const int top = source.top(tile), misplaced = (int)source.place(tile);
#pragma unroll
  for (int portion = 0; portion < PORTIONS; ++portion) {
    u32 loaded[AT_ONCE][LOADS];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int row = first + (portion * AT_ONCE + i) * ROWS_AT_ONCE;
      const u32 from = raw + row * RAW_PITCH + (misplaced + row * source.row_bytes & 15) + offset * (CHANNELS * 2);
      const bool is_there = row < PATCH_ROWS && (unsigned)(top + row) < (unsigned)source.image.height;
#pragma unroll
      for (int j = 0; j < LOADS; ++j) {  // of the first pixel or the second: a word's are both there, or neither is
        loaded[i][j] = 0;
        if (!is_there || !is_inside[j * GRANULE / 2 >= CHANNELS]) continue;
        if (GRANULE == 4)
          asm volatile("ld.shared.u32 %0, [%1];" : "=r"(loaded[i][j]) : "r"(from + 4 * j) : "memory");
        else
          asm volatile("{\n.reg .u16 v;\nld.shared.u16 v, [%1];\ncvt.u32.u16 %0, v;\n}"
            : "=r"(loaded[i][j]) : "r"(from + 2 * j) : "memory");
      }
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int row = first + (portion * AT_ONCE + i) * ROWS_AT_ONCE;
      u32 words[4] = {0, 0, 0, 0};
#pragma unroll
      for (int j = 0; j < LOADS; ++j) words[j * GRANULE / 4] |= loaded[i][j] << (GRANULE == 2 ? 16 * (j % 2) : 0);
      if (row < PATCH_ROWS)
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
          ::"r"(patch + (row * PITCH + at) * 16), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]) : "memory");
    }
  }
}

// The patches of a program's tiles, one after the other, STAGES of them stage_bytes apart; by the 128 threads of the first
// warpgroup. The rows of RAW - 1 more are on their way meanwhile. begin(tile, stage): when a stage may be filled again.
template <typename Begin>
__device__ __forceinline__ void load_patches(
    Walk walk, const Source& source, int row_tiles, int column_tiles, u32 raw, u32 patches, u32 stage_bytes, u32 full,
    u32 empty, const Begin& begin) {
  for (Walk ahead = walk; ahead.index < RAW - 1; ++ahead.index) {
    if (ahead.index < ahead.count)
      copy_rows(raw + ahead.index * RAW_BYTES, source, Tile(ahead.tile(), row_tiles, column_tiles));
    else
      asm volatile("cp.async.commit_group;" ::: "memory");
  }
#pragma unroll 1
  for (; walk.index < walk.count; ++walk.index) {
    const Tile tile(walk.tile(), row_tiles, column_tiles);
    const int stage = walk.stage();
    asm volatile("cp.async.wait_group %0;" ::"n"(RAW - 2) : "memory");
    asm volatile("bar.sync 6, 128;" ::: "memory");  // all have come, and the tile's before this one has been used
    Walk ahead = walk;
    ahead.index += RAW - 1;
    if (ahead.index < ahead.count)
      copy_rows(raw + ahead.index % RAW * RAW_BYTES, source, Tile(ahead.tile(), row_tiles, column_tiles));
    else
      asm volatile("cp.async.commit_group;" ::: "memory");
    barrier_wait(empty + 8 * stage, walk.parity() ^ 1);
    begin(tile, stage);
    make_units(patches + stage * stage_bytes, raw + walk.index % RAW * RAW_BYTES, source, tile);
    fence_for_engines();
    barrier_arrive(full + 8 * stage);
  }
}

// Operands as they lie there, without swizzle: core matrices of eight lines of 16 bytes each. leading: bytes to the next
// one along the terms, stride: along the lines.
__device__ __forceinline__ u64 core_descriptor(u32 address, u32 leading, u32 stride) {
  return (u64)((address & 0x3FFFF) >> 4) | ((u64)(leading >> 4) << 16) | ((u64)(stride >> 4) << 32);
}
