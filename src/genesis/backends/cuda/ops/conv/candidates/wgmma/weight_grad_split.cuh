// The weight's gradient in float32 (weight_grad.cu): operands become float16 parts, which are then multiplied.
__device__ __forceinline__ void load_16_bytes(u32 place, float& x, float& y, float& z, float& w) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x), "=f"(y), "=f"(z), "=f"(w) : "r"(place) : "memory");
}

__device__ __forceinline__ void store_16_bytes(u32 place, const u32 (&v)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
    ::"r"(place), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}

// Eight channels of a pixel to a thread at a time; threads of a warp have pixels in a row, as shared memory wants it.
#define CHUNKS (PIXELS * BN / 8)  // of a window
#define ROUNDS ((CHUNKS + 127) / 128)  // the last one may be of fewer threads

// Of the k-th chunk: the places of its first four numbers, of its last four, and of its high part.
struct Chunk {
  u32 first, second, part;

  __device__ __forceinline__ Chunk(u32 window, int k) {
    const int pixel = k % PIXELS, channel = k / PIXELS * 8;
    const u32 line = window + pixel * 128 + channel / 32 * PIXEL_BLOCK;
    first = line + ((channel % 32 / 4) ^ (pixel & 7)) * 16;
    second = line + ((channel % 32 / 4 + 1) ^ (pixel & 7)) * 16;
    part = window + pixel * 128 + channel / 64 * PIXEL_BLOCK + ((channel % 64 / 8) ^ (pixel & 7)) * 16;
  }
};

__device__ __forceinline__ bool is_chunk(int k) { return CHUNKS % 128 == 0 || k < CHUNKS; }

// A thread's numbers to the window's high and low part: blocks of 64 channels, a line per pixel.
template <bool RARE>
__device__ __forceinline__ void store_parts(u32 window, int thread, const float (&v)[8 * ROUNDS], float scale) {
#pragma unroll
  for (int i = 0; i < ROUNDS; ++i) {
    const int k = thread + 128 * i;
    if (!is_chunk(k)) continue;
    u32 high[4], low[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      split_pair(v[8 * i + 2 * e], v[8 * i + 2 * e + 1], scale, high[e], low[e]);
      if (RARE && PRODUCTS == 3) set_infinities(high[e], low[e], v[8 * i + 2 * e], v[8 * i + 2 * e + 1]);
    }
    const u32 place = Chunk(window, k).part;
    store_16_bytes(place, high);
    if (PRODUCTS == 3) store_16_bytes(place + WINDOW_BYTES / 2, low);
  }
}

#define HAS_INFINITIES (1 << 16)  // in exponents

// A window, BN float32 of each pixel, becomes its parts, times 2^exponent. most_of_warp: four numbers, of this window;
// num_channels: others are another group's, which must not decide on the exponent.
__device__ __forceinline__ void convert_window(u32 window, float* most_of_warp, int* exponent, int num_channels) {
  const int thread = threadIdx.x % 128;
  float v[8 * ROUNDS];
  float mosts[4] = {0.f, 0.f, 0.f, 0.f};  // four, which need not wait for one another
#pragma unroll
  for (int i = 0; i < ROUNDS; ++i) {
    const Chunk chunk(window, thread + 128 * i);
#pragma unroll
    for (int e = 0; e < 8; ++e) v[8 * i + e] = 0.f;
    if (is_chunk(thread + 128 * i)) {
      load_16_bytes(chunk.first, v[8 * i], v[8 * i + 1], v[8 * i + 2], v[8 * i + 3]);
      load_16_bytes(chunk.second, v[8 * i + 4], v[8 * i + 5], v[8 * i + 6], v[8 * i + 7]);
    }
    if (GROUPED) {
      const int channel = (thread + 128 * i) / PIXELS * 8;
#pragma unroll
      for (int e = 0; e < 8; ++e)
        if (channel + e / 4 * 4 >= num_channels) v[8 * i + e] = 0.f;
    }
  }
#pragma unroll
  for (int i = 0; i < 8 * ROUNDS; ++i) mosts[i % 4] = larger_or_nan(mosts[i % 4], fabsf(v[i]));
  float most = larger_or_nan(larger_or_nan(mosts[0], mosts[1]), larger_or_nan(mosts[2], mosts[3]));
  const bool rare = __any_sync(FULL_WARP, !is_finite(most));
  if (rare) {
    most = 0.f;
#pragma unroll
    for (int i = 0; i < 8 * ROUNDS; ++i)
      if (is_finite(v[i])) most = fmaxf(most, fabsf(v[i]));
  }
  most = largest_of_warp(most);
  if (thread % 32 == 0) most_of_warp[thread / 32] = rare ? -most : most;
  asm volatile("bar.sync 1, 128;" ::: "memory");  // everything is read, too: the window may be overwritten
  u32 signs = rare ? 1u << 31 : 0;
#pragma unroll
  for (int i = 1; i < 4; ++i) {
    const float other = most_of_warp[(thread / 32 + i) % 4];
    signs |= __float_as_uint(other);
    most = fmaxf(most, fabsf(other));
  }
  const int chosen = most > 0.f ? max(min(14 + 127 - (int)(__float_as_uint(most) >> 23), 126), -112) : 0;
  const float scale = power_of_2(chosen);
  if (thread == 0) *exponent = chosen + (TAPS == 3 && signs >> 31 ? HAS_INFINITIES : 0);
  if (rare)
    store_parts<true>(window, thread, v, scale);
  else
    store_parts<false>(window, thread, v, scale);
}

__device__ __forceinline__ void convert(
    u32 base, u32 full, u32 ready, int units, float* largest, int* exponents, const Geometry& g) {
  Turn turn;
  for (int k = blockIdx.x; k < units; k += gridDim.x) {
    const Unit unit(k, g);
    for (int step = unit.first; step < unit.last; ++step) {
      const u32 input = base + turn.stage * STAGE_BYTES + GRAD_BYTES;
      barrier_wait(full + 8 * turn.stage, turn.parity);
#pragma unroll
      for (int i = 0; i < WINDOWS; ++i) {
        const int slot = turn.stage * WINDOWS + i;
        convert_window(input + i * WINDOW_BYTES, largest + 4 * slot, exponents + slot, g.num_inputs - unit.column);
      }
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      barrier_arrive(ready + 8 * turn.stage);
      turn.next();
    }
  }
}

#define CHAIN (BN / 2)  // sums of a thread and tap

__device__ __forceinline__ float load_number(u32 place) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(place) : "memory");
  return x;
}

// Of the gradient, in a stage.
__device__ __forceinline__ u32 place_of_grad(int row, int pixel) {
  return row / 32 * LINE_BLOCK + pixel * 128 + ((row % 32 / 4) ^ (pixel & 7)) * 16 + row % 4 * 4;
}

// Those that a thread multiplies, known before the first stage: rows local and 8 below, pixels 2 quad and the next; of
// other pixels, whole swizzles of 8 lines further on, they lie at distances that the loads' instructions hold.
struct Places {
  u32 place[2][2];

  __device__ __forceinline__ Places(int local) {
#pragma unroll
    for (int i = 0; i < 4; ++i) place[i / 2][i % 2] = place_of_grad(local + i / 2 * 8, threadIdx.x % 4 * 2 + i % 2);
  }

  // Row r, the j-th group of 16 pixels: 2 quad, the next, and both 8 on.
  __device__ __forceinline__ float4 load(u32 grad, int j, int r) const {
    const u32 first = grad + place[r][0] + j * 2048, second = grad + place[r][1] + j * 2048;
    return make_float4(
      load_number(first), load_number(second), load_number(first + 1024), load_number(second + 1024));
  }
};

// The chain of a tap, products 0 .. 63.
__device__ __forceinline__ void multiply_parts(float (&chain)[CHAIN], const Fragments& a, u32 input) {
  const u64 high = transposed_descriptor(input, PIXEL_BLOCK);
  wgmma_fence();
#if PRODUCTS == 3
  const u64 low = transposed_descriptor(input + WINDOW_BYTES / 2, PIXEL_BLOCK);
  wgmma<false, true>(chain, a.low[0], high);
#pragma unroll
  for (int j = 1; j < 4; ++j) wgmma<true, true>(chain, a.low[j], high + 128 * j);
#pragma unroll
  for (int j = 0; j < 4; ++j) wgmma<true, true>(chain, a.high[j], low + 128 * j);
#endif
  wgmma<PRODUCTS == 3, true>(chain, a.high[0], high);
#pragma unroll
  for (int j = 1; j < 4; ++j) wgmma<true, true>(chain, a.high[j], high + 128 * j);
  wgmma_commit();
}

// The same for a tile with infinities, which would make NaN of the zeros between the gradient's lines: without those.
__device__ __forceinline__ void multiply_between(
    float (&chain)[CHAIN], const int (&exponent)[2], int local, u32 grad, u32 input, int first_pixel,
    const Geometry& g) {
#pragma unroll
  for (int i = 0; i < CHAIN; ++i) chain[i] = 0.f;
#pragma unroll 1
  for (int pixel = 0; pixel < BK; ++pixel) {
    if ((first_pixel + pixel) % g.out_width >= g.true_width) continue;
    float a[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int half = exponent[r] / 2;
      const float number = load_number(grad + place_of_grad(local + 8 * r, pixel));
      a[r] = number * power_of_2(half) * power_of_2(exponent[r] - half);
    }
    const u32 line = input + pixel * 128;
#pragma unroll
    for (int i = 0; i < BN / 8; ++i) {
      const u32 place = line + (i ^ (line >> 7 & 7)) * 16 + threadIdx.x % 4 * 4;
      u32 part;
      float first, second;
      asm volatile("ld.shared.b32 %0, [%1];" : "=r"(part) : "r"(place) : "memory");
      unpack(part, first, second);
#if PRODUCTS == 3
      float first_low, second_low;
      asm volatile("ld.shared.b32 %0, [%1];" : "=r"(part) : "r"(place + WINDOW_BYTES / 2) : "memory");
      unpack(part, first_low, second_low);
      first += first_low;
      second += second_low;
#endif
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        chain[4 * i + 2 * r] += a[r] * first;
        chain[4 * i + 2 * r + 1] += a[r] * second;
      }
    }
  }
  __syncwarp();  // one thread tells of all that they have read
}

// Warpgroups take turns, so that one splits its outputs' gradients while products of the other one run: its turn is over
// when those of tap LAST_OF_TURN are on the way. Of three taps that is the second: then products of both are waiting,
// and some run while either adds up a chain.
#define TURNS (TAPS == 3 || !ALTERNATE)
#define LAST_OF_TURN (TAPS == 3 ? 1 : 0)

__device__ __forceinline__ void begin_turn() {
#if TURNS
  asm volatile("bar.sync %0, 256;" ::"r"(threadIdx.x / 128) : "memory");
#endif
}

__device__ __forceinline__ void end_turn() {
#if TURNS
  asm volatile("bar.arrive %0, 256;" ::"r"(5 - threadIdx.x / 128) : "memory");
#endif
}

__device__ __forceinline__ void add_chain(
    float (&sum)[COLUMNS / 2], int tap, const float (&chain)[CHAIN], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < CHAIN; ++i) sum[tap * CHAIN + i] += chain[i] * factor[i / 2 % 2];
}

// A chain of products of the stage's 64 pixels for each tap, added to sum.
__device__ __forceinline__ void multiply_split(
    float (&sum)[COLUMNS / 2], Range& range, const Places& places, int local, u32 grad, u32 ready, u32 empty,
    u32 parity, const int* exponents, int first_pixel, const Geometry& g) {
  const u32 input = grad + GRAD_BYTES;
  float4 v[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = places.load(grad, i / 2, i % 2);
  Fragments a;
  a.split(v);
  barrier_wait(ready, parity);
  int raised[WINDOWS];
  bool has_infinities = false;
#pragma unroll
  for (int i = 0; i < WINDOWS; ++i) {
    raised[i] = RAISED - exponents[i];
    const bool rare = raised[i] < -HAS_INFINITIES / 2;
    raised[i] += rare ? HAS_INFINITIES : 0;
    has_infinities |= rare;
  }
  float factor[2], chain[CHAIN];
  range.factors(raised[0] - a.exponent[0], raised[0] - a.exponent[1], sum, factor);
  begin_turn();
  if (TAPS == 3 && has_infinities) {
    end_turn();
#pragma unroll
    for (int tap = 0; tap < TAPS; ++tap) {
      if (WINDOWS == 2 && tap == 2)
        range.factors(raised[WINDOWS - 1] - a.exponent[0], raised[WINDOWS - 1] - a.exponent[1], sum, factor);
      multiply_between(chain, a.exponent, local, grad, input + place_of(tap, g.shift), first_pixel, g);
      add_chain(sum, tap, chain, factor);
    }
    if (threadIdx.x % 32 == 0) barrier_arrive(empty);
    return;
  }
#pragma unroll
  for (int tap = 0; tap < TAPS; ++tap) {
    if (WINDOWS == 2 && tap == 2)
      range.factors(raised[WINDOWS - 1] - a.exponent[0], raised[WINDOWS - 1] - a.exponent[1], sum, factor);
    multiply_parts(chain, a, input + place_of(tap, g.shift));
    if (tap == LAST_OF_TURN) end_turn();
    wgmma_wait<0>();
    keep(chain);
    if (tap == TAPS - 1 && threadIdx.x % 32 == 0) barrier_arrive(empty);
    add_chain(sum, tap, chain, factor);
  }
}
