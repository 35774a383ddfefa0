// A 1x1 convolution in 16 bits, or its input's gradient, as a product of matrices whose right side stays on the chip:
//
//   out (pixel, result) = act(sum over terms of first (pixel, term) * weight + bias)
//
// A block keeps the weight in shared memory, in the order in which tensor cores take it. Its warps work by themselves:
// each has one tile of ROWS pixels after the other, copies the next STAGES - 1 ahead, and puts its results together in
// shared memory, so that they too are written as one piece.
//
// Macros: DTYPE 1 float16 | 2 bfloat16; TERMS, RESULTS: channels; TRANSPOSED (0 | 1): of the weight (term, result); ROWS
// (multiple of 16), WARPS, STAGES (2 and more), BLOCKS of a multiprocessor; BIAS, RELU: of the epilogue.
#include "pixels.cuh"

struct Geometry {
  int num_pixels, iterations;  // iterations: tiles of a warp
};

using Terms = Pixels<TERMS>;
using Results = Pixels<RESULTS>;
constexpr int STEPS = (TERMS + 15) / 16, PAIRS = (RESULTS + 15) / 16, CHUNKS = ROWS / 16, NUM_THREADS = 32 * WARPS;
constexpr int WEIGHT_BYTES = STEPS * PAIRS * 512, BIAS_BYTES = PAIRS * 64;
constexpr int TILE_BYTES = Terms::room(ROWS), WARP_BYTES = STAGES * TILE_BYTES + Results::room(ROWS);

// Of a step of 16 terms, and 16 results, what each lane needs: of results g and g + 8, terms 2 t, 2 t + 1, 2 t + 8, 2 t + 9.
__device__ __forceinline__ void load_weight(uint4* to, const u16* __restrict__ weight) {
#pragma unroll 4
  for (int e = threadIdx.x; e < STEPS * PAIRS * 32; e += NUM_THREADS) {
    const int lane = e % 32, pair = e / 32 % PAIRS, step = e / 32 / PAIRS;
    u32 words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      u32 found[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int result = pair * 16 + i / 2 * 8 + lane / 4, term = step * 16 + i % 2 * 8 + lane % 4 * 2 + j;
        found[j] = 0;
        if (result < RESULTS && term < TERMS)
          found[j] = __ldg(weight + (TRANSPOSED ? term * RESULTS + result : result * TERMS + term));
      }
      words[i] = paired(found[0], found[1], false);
    }
    to[e] = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// sums += 16 terms of each chunk of pixels times the weight. ENDS: they are the last ones.
template <bool ENDS>
__device__ __forceinline__ void multiply(float (&sums)[CHUNKS * PAIRS * 2][4], const char* tile, const uint4* weight, int step,
                                         int lane) {
  constexpr bool IS_HALF = ENDS && Terms::HAS_VECTORS && TERMS % 16 > 0;  // eight terms are left
  u32 left[CHUNKS][4];
#pragma unroll
  for (int m = 0; m < CHUNKS; ++m) Terms::as_rows<ENDS>(left[m], tile + m * 16 * Terms::PITCH, step * 16, lane);
#pragma unroll
  for (int pair = 0; pair < PAIRS; ++pair) {
    const uint4 right = weight[(step * PAIRS + pair) * 32 + lane];
#pragma unroll
    for (int m = 0; m < CHUNKS; ++m) {
      float(&low)[4] = sums[(m * PAIRS + pair) * 2], (&high)[4] = sums[(m * PAIRS + pair) * 2 + 1];
      const u32(&a)[4] = left[m];
      if constexpr (IS_HALF) {
        multiply_8<DTYPE == 2>(low, a[0], a[1], right.x);
        multiply_8<DTYPE == 2>(high, a[0], a[1], right.z);
      } else {
        multiply_16<DTYPE == 2>(low, a[0], a[1], a[2], a[3], right.x, right.y);
        multiply_16<DTYPE == 2>(high, a[0], a[1], a[2], a[3], right.z, right.w);
      }
    }
  }
}

// Two neighbouring results of a pixel.
__device__ __forceinline__ void put(char* tile, int pixel, int result, float first, float second, const float* bias) {
  if (result >= RESULTS) return;
  if (BIAS) first += bias[result], second += bias[result + 1];
  if (RELU) first = first < 0.f ? 0.f : first, second = second < 0.f ? 0.f : second;  // NaN stays NaN
  const u32 word = rounded_pair<DTYPE == 2>(first, second);
  char* const to = tile + pixel * Results::PITCH + result * 2;
  if (RESULTS % 2 == 0) {
    *reinterpret_cast<u32*>(to) = word;
  } else {
    *reinterpret_cast<u16*>(to) = (u16)word;
    if (result + 1 < RESULTS) *reinterpret_cast<u16*>(to + 2) = (u16)(word >> 16);
  }
}

extern "C" __global__ void __launch_bounds__(NUM_THREADS, BLOCKS)
    flat_gemm_forward(const char* __restrict__ first, const u16* __restrict__ weight, char* __restrict__ out,
                      const u16* __restrict__ bias, const Geometry g) {
  uint4* const weights = reinterpret_cast<uint4*>(memory);
  float* const biases = memory + WEIGHT_BYTES / 4;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  char* const tiles = reinterpret_cast<char*>(memory) + WEIGHT_BYTES + BIAS_BYTES + warp * WARP_BYTES;
  char* const results = tiles + STAGES * TILE_BYTES;
  const int worker = blockIdx.x * WARPS + warp, step = gridDim.x * WARPS * ROWS;  // of pixels
  follow();
#pragma unroll
  for (int i = 0; i < STAGES - 1; ++i) {
    if (i < g.iterations)
      Terms::copy<ROWS, 32>(tiles + i * TILE_BYTES, first, worker * ROWS + i * step, g.num_pixels, lane);
    commit_copies();
  }
  load_weight(weights, weight);
  for (int i = threadIdx.x; BIAS && i < PAIRS * 16; i += NUM_THREADS)
    biases[i] = i < RESULTS ? half_of<DTYPE == 2>(__ldg(bias + i), false) : 0.f;
  __syncthreads();
  int stage = 0;
#pragma unroll 1
  for (int iteration = 0; iteration < g.iterations; ++iteration) {
    wait_for_copies_but<STAGES - 2>();
    __syncwarp();  // all lanes' copies are there; and what the tile before this one had is read, and written
    const int pixel = worker * ROWS + iteration * step, ahead = stage == 0 ? STAGES - 1 : stage - 1;
    if (iteration + STAGES - 1 < g.iterations)
      Terms::copy<ROWS, 32>(tiles + ahead * TILE_BYTES, first, pixel + (STAGES - 1) * step, g.num_pixels, lane);
    commit_copies();
    const char* const tile = tiles + stage * TILE_BYTES;
    float sums[CHUNKS * PAIRS * 2][4];
#pragma unroll
    for (int i = 0; i < CHUNKS * PAIRS * 8; ++i) sums[i / 4][i % 4] = 0.f;
#pragma unroll 2
    for (int k = 0; k < STEPS - 1; ++k) multiply<false>(sums, tile, weights, k, lane);
    multiply<true>(sums, tile, weights, STEPS - 1, lane);
#pragma unroll
    for (int m = 0; m < CHUNKS; ++m)
#pragma unroll
      for (int n = 0; n < PAIRS * 2; ++n)
#pragma unroll
        for (int below = 0; below < 2; ++below) {
          const float(&mine)[4] = sums[m * PAIRS * 2 + n];
          put(results, m * 16 + below * 8 + lane / 4, n * 8 + lane % 4 * 2, mine[2 * below], mine[2 * below + 1], biases);
        }
    __syncwarp();
    Results::store<ROWS>(out, results, pixel, g.num_pixels, lane);
    stage = stage == STAGES - 1 ? 0 : stage + 1;
  }
}
