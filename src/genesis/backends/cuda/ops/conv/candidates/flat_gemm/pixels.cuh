// Pixels that lie side by side in memory: one piece, which is copied 16 bytes at a time whatever a pixel's channels come
// to, and does not begin anew at each pixel. In shared memory
// - those whose channels are multiples of 16 bytes begin at odd multiples of 16 bytes, so that eight of them lie in
//   different banks, as ldmatrix takes them;
// - others lie as they do in memory, and are read a pair of channels at a time, or one.
#pragma once
#include "../overlap.cuh"
#include "../instructions.cuh"

extern __shared__ __align__(16) float memory[];

template <int CHANNELS>
struct Pixels {
  static constexpr int BYTES = CHANNELS * 2, VECTORS = BYTES / 16;
  static constexpr bool HAS_VECTORS = BYTES % 16 == 0;
  static constexpr int PITCH = HAS_VECTORS ? (VECTORS | 1) * 16 : BYTES;

  // Of so many pixels, a multiple of eight, in shared memory.
  __device__ static constexpr int room(int pixels) { return pixels * PITCH; }

  // Where the i-th 16 bytes lie.
  __device__ __forceinline__ static int place(int i) {
    return HAS_VECTORS ? i / (HAS_VECTORS ? VECTORS : 1) * PITCH + i % (HAS_VECTORS ? VECTORS : 1) * 16 : i * 16;
  }

  // Bytes from the i-th 16 on, of NUMBER pixels from `first` on.
  template <int NUMBER>
  __device__ __forceinline__ static int left(int i, int first, int num_pixels) {
    return min(NUMBER, max(num_pixels - first, 0)) * BYTES - i * 16;
  }

  // NUMBER pixels from `first` on into shared memory, by so many threads; zeros behind the last one.
  template <int NUMBER, int THREADS>
  __device__ __forceinline__ static void copy(char* to, const char* __restrict__ from, int first, int num_pixels, int thread) {
    const char* const begin = from + (long long)first * BYTES;
#pragma unroll
    for (int i = thread; i < NUMBER * BYTES / 16; i += THREADS) {
      const int bytes = min(max(left<NUMBER>(i, first, num_pixels), 0), 16);
      copy_up_to_16(to + place(i), bytes > 0 ? begin + i * 16 : from, bytes);
    }
  }

  // And back, by a warp.
  template <int NUMBER>
  __device__ __forceinline__ static void store(char* __restrict__ to, const char* from, int first, int num_pixels, int lane) {
    char* const begin = to + (long long)first * BYTES;
#pragma unroll
    for (int i = lane; i < NUMBER * BYTES / 16; i += 32) {
      const int bytes = left<NUMBER>(i, first, num_pixels);
      if (bytes >= 16) {
        *reinterpret_cast<uint4*>(begin + i * 16) = *reinterpret_cast<const uint4*>(from + place(i));
      } else {
        for (int j = 0; j < bytes; j += 2)
          *reinterpret_cast<u16*>(begin + i * 16 + j) = *reinterpret_cast<const u16*>(from + place(i) + j);
      }
    }
  }

  __device__ __forceinline__ static u32 one(const char* at, int pixel, int channel) {
    return *reinterpret_cast<const u16*>(at + pixel * PITCH + channel * 2);
  }

  // Two channels of a pixel, the first one even; with ENDS, zeros beyond the last channel.
  template <bool ENDS>
  __device__ __forceinline__ static u32 channels(const char* at, int pixel, int channel) {
    if (ENDS && channel >= CHANNELS) return 0;
    if (CHANNELS % 2 == 0) return *reinterpret_cast<const u32*>(at + pixel * PITCH + channel * 2);
    const u32 second = ENDS && channel + 1 >= CHANNELS ? 0 : one(at, pixel, channel + 1);
    return paired(one(at, pixel, channel), second, false);
  }

  // 16 pixels as the rows of a product's left side, 16 channels from `first` on; with ENDS, the last ones: what is beyond
  // is zeros, or, where only eight are left, is not to be used.
  template <bool ENDS>
  __device__ __forceinline__ static void as_rows(u32 (&found)[4], const char* at, int first, int lane) {
    if constexpr (HAS_VECTORS) {
      load_matrices(found, reinterpret_cast<const uint4*>(at + lane % 16 * PITCH + first * 2 + lane / 16 * 16));
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        found[i] = channels<ENDS>(at, lane / 4 + i % 2 * 8, first + lane % 4 * 2 + i / 2 * 8);
    }
  }

  // 16 pixels as the columns of a product's left side, 16 channels from `first` on as its rows.
  __device__ __forceinline__ static void as_columns(u32 (&found)[4], const char* at, int first, int lane) {
    if constexpr (HAS_VECTORS) {
      const int pixel = lane / 16 * 8 + lane % 8;
      load_transposed(found, reinterpret_cast<const uint4*>(at + pixel * PITCH + first * 2 + lane / 8 % 2 * 16));
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int pixel = lane % 4 * 2 + i / 2 * 8, channel = first + lane / 4 + i % 2 * 8;
        found[i] = paired(one(at, pixel, channel), one(at, pixel + 1, channel), false);
      }
    }
  }

  // 16 pixels as the rows of a product's right side, eight channels from `first` on.
  __device__ __forceinline__ static void as_terms(u32 (&found)[2], const char* at, int first, int lane) {
    if constexpr (HAS_VECTORS) {
      load_transposed(found, reinterpret_cast<const uint4*>(at + lane % 16 * PITCH + first * 2));
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int pixel = lane % 4 * 2 + i * 8, channel = first + lane / 4;
        found[i] = paired(one(at, pixel, channel), one(at, pixel + 1, channel), false);
      }
    }
  }
};
