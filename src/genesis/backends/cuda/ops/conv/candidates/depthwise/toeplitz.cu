// Depthwise convolution with stride 1 in 16 bits on tensor cores: the forward and the input's gradient.
//
// With many taps, multiply-adds take longer than memory. A row of taps of one channel is a Toeplitz matrix,
//
//   out (column, row) = sum over k of T (column, k) * first (k, row),   T (m, k) = weight (k - m),
//
// of 16 results and 24 columns of first, of which most elements are zero: but tensor cores have that to spare, and no
// number is converted. Eight rows of results are the product's columns; each row of taps is a product of its own, of rows
// that lie one further down. T is in the instruction's registers only two different words, since what counts is k - m.
//
// A warp has eight channels of a pixel, 16 bytes: from two neighbouring pixels come the pairs that a lane multiplies. The
// pixels that a block's taps meet, the patch, are copied into shared memory once, zeros where there are none. Pixels and
// rows lie there at such distances that eight lanes, 2 rows x 4 pixels, read from all banks.
//
// An infinite pixel times the zeros of T is NaN: 24 columns get to know of it, not TAPS_X.
//
// Macros: DTYPE 1 float16 | 2 bfloat16; INPUT_GRAD; TAPS_Y, TAPS_X (at most 9); PADDING_Y, PADDING_X; TILES_X by TILES_Y tiles of a warp, 16
// columns x 8 rows each; WARPS_X, WARPS_Y of them in a block, for each of GROUPS of eight channels; CHANNELS; BIAS, RESIDUAL,
// RELU: of the epilogue.
#include "../overlap.cuh"
#include "../instructions.cuh"

struct Geometry {
  int slices, iterations;          // slices: blocks side by side that have all channels
  int num_units, strips, bands;    // patches; in a row, and in a column of an image
  int height, width;               // of first
  int out_height, out_width;
};

constexpr int ROWS = 8 * TILES_Y * WARPS_Y, COLUMNS = 16 * TILES_X * WARPS_X;
constexpr int PATCH_ROWS = ROWS + TAPS_Y - 1, PATCH_COLUMNS = COLUMNS + 8;
constexpr int PIXEL = (GROUPS + 2) / 4 * 4 + 1, LINE = PATCH_COLUMNS * PIXEL | 1;  // of 16 bytes
constexpr int NUM_THREADS = 32 * WARPS_X * WARPS_Y * GROUPS;
constexpr int LEAST = -7, SHIFTS = 22;  // k - m of a pair's first tap
constexpr int TOP = INPUT_GRAD ? TAPS_Y - 1 - PADDING_Y : PADDING_Y, LEFT = INPUT_GRAD ? TAPS_X - 1 - PADDING_X : PADDING_X;

extern __shared__ uint4 patch[];

// Pairs of taps, (channel, row of taps, shift): zeros beyond the first and the last.
__device__ __forceinline__ void load_taps(u32* taps, const u16* __restrict__ weight, int first_channel) {
  for (int e = threadIdx.x; e < GROUPS * 8 * TAPS_Y; e += NUM_THREADS) {
    const int r = e % TAPS_Y, channel = first_channel + e / TAPS_Y;
    u32 row[TAPS_X];
#pragma unroll
    for (int s = 0; s < TAPS_X; ++s) {
      const int tap = r * TAPS_X + s, from = INPUT_GRAD ? TAPS_Y * TAPS_X - 1 - tap : tap;
      row[s] = channel < CHANNELS ? __ldg(weight + channel * (TAPS_Y * TAPS_X) + from) : 0;
    }
#pragma unroll
    for (int i = 0; i < SHIFTS; ++i) {
      const int s = i + LEAST;
      const u32 low = s >= 0 && s < TAPS_X ? row[s] : 0, high = s >= -1 && s < TAPS_X - 1 ? row[s + 1] : 0;
      taps[e * SHIFTS + i] = low | high << 16;
    }
  }
}

extern "C" __global__ void __launch_bounds__(NUM_THREADS)
    depthwise_toeplitz(const u16* __restrict__ first, const u16* __restrict__ weight, u16* __restrict__ out,
                       const u16* __restrict__ bias, const u16* __restrict__ residual, const Geometry g) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row_of_8 = lane / 4, pair_of_8 = lane % 4;
  const int group = warp % GROUPS, warp_x = warp / GROUPS % WARPS_X, warp_y = warp / (GROUPS * WARPS_X);
  const int block = blockIdx.x / g.slices, first_channel = (blockIdx.x - block * g.slices) * (GROUPS * 8);
  const int channel = first_channel + group * 8;
  u32* taps = reinterpret_cast<u32*>(patch + PATCH_ROWS * LINE);
  const u32* my_taps = taps + group * (8 * TAPS_Y * SHIFTS) + 2 * pair_of_8 - row_of_8 - LEAST;
  const int my_row = warp_y * (TILES_Y * 8), my_column = warp_x * (TILES_X * 16);
  const uint4* my_pixels = patch + (my_row + row_of_8) * LINE + (my_column + 2 * pair_of_8) * PIXEL + group;
  follow();

  for (int iteration = 0; iteration < g.iterations; ++iteration) {
    const int unit = block * g.iterations + iteration;
    if (unit >= g.num_units) break;
    const int rest = unit / g.strips, image = rest / g.bands;
    const int column = (unit - rest * g.strips) * COLUMNS, row = (rest - image * g.bands) * ROWS;
    if (iteration > 0) __syncthreads();  // the patch before this one is read
    for (int e = threadIdx.x; e < PATCH_ROWS * PATCH_COLUMNS * GROUPS; e += NUM_THREADS) {
      const int c = e % GROUPS, i = e / (GROUPS * PATCH_COLUMNS), j = e / GROUPS % PATCH_COLUMNS;
      const int y = row - TOP + i, x = column - LEFT + j;
      const bool inside = (unsigned)y < (unsigned)g.height && (unsigned)x < (unsigned)g.width &&
                          first_channel + c * 8 < CHANNELS;
      const long long place = (((long long)image * g.height + y) * g.width + x) * CHANNELS + first_channel + c * 8;
      copy_16(patch + i * LINE + j * PIXEL + c, inside ? first + place : first, inside);
    }
    if (iteration == 0) load_taps(taps, weight, first_channel);
    wait_for_copies();
    __syncthreads();

    float sums[TILES_Y][TILES_X][8][4];
#pragma unroll
    for (int i = 0; i < TILES_Y * TILES_X * 32; ++i) sums[i / (TILES_X * 32)][i / 32 % TILES_X][i / 4 % 8][i % 4] = 0.f;
#pragma unroll 1
    for (int r = 0; r < TAPS_Y; ++r) {
      u32 early[8], late[8];  // T's pairs at columns 2 t and 2 t + 8
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        early[c] = my_taps[(c * TAPS_Y + r) * SHIFTS];
        late[c] = my_taps[(c * TAPS_Y + r) * SHIFTS + 8];
      }
#pragma unroll
      for (int down = 0; down < TILES_Y; ++down) {
        u32 pixels[2 * TILES_X + 1][2][4];  // eight columns each
#pragma unroll
        for (int i = 0; i < 4 * TILES_X + 2; ++i) {
          const uint4 found = my_pixels[(down * 8 + r) * LINE + (i / 2 * 8 + i % 2) * PIXEL];
          pixels[i / 2][i % 2][0] = found.x, pixels[i / 2][i % 2][1] = found.y;
          pixels[i / 2][i % 2][2] = found.z, pixels[i / 2][i % 2][3] = found.w;
        }
#pragma unroll
        for (int c = 0; c < 8; ++c) {
          u32 pairs[2 * TILES_X + 1];
#pragma unroll
          for (int k = 0; k < 2 * TILES_X + 1; ++k) pairs[k] = paired(pixels[k][0][c / 2], pixels[k][1][c / 2], c % 2);
#pragma unroll
          for (int tile = 0; tile < TILES_X; ++tile) {
            float(&mine)[4] = sums[down][tile][c];
            multiply_16<DTYPE == 2>(mine, early[c], 0u, late[c], early[c], pairs[2 * tile], pairs[2 * tile + 1]);
            if (TAPS_X > 1) multiply_8<DTYPE == 2>(mine, 0u, late[c], pairs[2 * tile + 2]);
          }
        }
      }
    }

#pragma unroll
    for (int i = 0; i < TILES_Y * TILES_X * 4; ++i) {
      const int down = i / (4 * TILES_X), tile = i / 4 % TILES_X, below = i % 2, right = i / 2 % 2;
      const int y = row + my_row + down * 8 + 2 * pair_of_8 + below;
      const int x = column + my_column + tile * 16 + row_of_8 + 8 * right;
      if (y >= g.out_height || x >= g.out_width || channel >= CHANNELS) continue;
      const long long place = (((long long)image * g.out_height + y) * g.out_width + x) * CHANNELS + channel;
      u32 words[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        float results[2];
        u32 added = 0, more = 0;
        if (BIAS) added = __ldg(reinterpret_cast<const u32*>(bias + channel) + w);
        if (RESIDUAL) more = __ldg(reinterpret_cast<const u32*>(residual + place) + w);
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          float result = sums[down][tile][2 * w + k][2 * right + below];
          if (BIAS) result += half_of<DTYPE == 2>(added, k);
          if (RESIDUAL) result += half_of<DTYPE == 2>(more, k);
          results[k] = RELU && result < 0.f ? 0.f : result;  // NaN stays NaN
        }
        words[w] = rounded_pair<DTYPE == 2>(results[0], results[1]);
      }
      *reinterpret_cast<uint4*>(out + place) = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
}
