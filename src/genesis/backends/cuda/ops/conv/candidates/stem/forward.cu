// The first convolution of a network, of an image with a few channels, on Hopper in 16 bits:
//
//   out (outputs x pixels) = sum over terms of weight (outputs x terms) * window (terms x pixels)
//
// The terms of a window are its rows of taps, each in chunks of eight: whole units of units.cuh, with zeros as the weight
// where a unit has no tap. Windows are operands where they lie, so that a pixel comes from memory once, and half of what
// shared memory gives is enough: 64 outputs are a product's rows and up to 256 pixels its columns.
//
// Programs stay: one keeps the weight of 64 outputs and takes one tile after the other. A warpgroup loads patches, two
// multiply in turns, so that one writes its tile while the other's products run.
//
// Macros: those of units.cuh; KIND "f16" | "bf16"; STATISTICS: of each output, too; tiles are whole then.
#define BN (8 * BR)  // pixels of a tile
#include "units.cuh"
#include "outputs_as_rows.cuh"

struct Geometry {
  int row_tiles, column_tiles, num_tiles;       // of an image, of an image, of all
  int height, width, padding_y, padding_x;      // of the input
  int num_images, num_outputs, relu;
};

// A product takes two chunks, of which the second lies behind the first: where there are planes, two of the same row.
constexpr int PAIRED_CHUNKS = PLANES > 1 ? (ROW_CHUNKS + 1) / 2 * 2 : ROW_CHUNKS;
constexpr int CHUNKS = TAPS_Y * PAIRED_CHUNKS, STEPS = (CHUNKS + 1) / 2;
constexpr int WEIGHT_BYTES = STEPS * 2 * 1024, TILE_BYTES = BN * 128;

__device__ constexpr int place_of(int chunk) {  // in a patch, in bytes
  return (chunk / PAIRED_CHUNKS * PITCH + unit_of(chunk % PAIRED_CHUNKS)) * 16;
}
__device__ constexpr bool are_in_order(int step) {
  return 2 * step + 1 >= CHUNKS || (place_of(2 * step) < place_of(2 * step + 1) && are_in_order(step + 1));
}
static_assert(are_in_order(0), "a descriptor has no negative distances");

// The weight of 64 outputs as an operand, (chunk, output, 8 terms), by both warpgroups that multiply.
__device__ __forceinline__ void load_weight(u32 target, const u16* __restrict__ weight, int first, int num_outputs) {
  constexpr int AT_ONCE = 4;
#pragma unroll 1
  for (int line = threadIdx.x - 128 * LOADERS; line < STEPS * 2 * 64; line += 128 * CONSUMERS * AT_ONCE) {
    u32 words[AT_ONCE][4];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int at = line + 128 * CONSUMERS * i, chunk = at / 64, output = first + at % 64;
      const int column = chunk % PAIRED_CHUNKS * PIXELS - LEAD;
      const u16* taps = weight + ((long long)output * TAPS_Y + chunk / PAIRED_CHUNKS) * (TAPS_X * CHANNELS);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int pixel = column + e / CHANNELS;
        const bool is_tap = e < PIXELS * CHANNELS && chunk < CHUNKS && (unsigned)pixel < (unsigned)TAPS_X;
        const u32 value = is_tap && output < num_outputs ? __ldg(taps + pixel * CHANNELS + e % CHANNELS) : 0;
        words[i][e / 2] = e % 2 ? words[i][e / 2] | value << 16 : value;
      }
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i)
      if (line + 128 * CONSUMERS * i < STEPS * 2 * 64)
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
          ::"r"(target + (line + 128 * CONSUMERS * i) * 16), "r"(words[i][0]), "r"(words[i][1]), "r"(words[i][2]),
            "r"(words[i][3]) : "memory");
  }
  fence_for_engines();
}

struct Nothing {
  __device__ __forceinline__ void operator()(const Tile&, int) const {}
};

extern "C" __global__ void __launch_bounds__(128 * (LOADERS + CONSUMERS), 1) conv_stem(
    const __grid_constant__ TensorMap out_map, const u16* __restrict__ input, const u16* __restrict__ weight_values,
    const void* __restrict__ bias,
#if STATISTICS
    float* __restrict__ partial,
#endif
    const __grid_constant__ Geometry g) {
  extern __shared__ unsigned char memory[];
  __shared__ __align__(8) u64 barriers[2 * STAGES];
  const u32 tiles = (shared_address(memory) + 1023) & ~1023u, weight = tiles + CONSUMERS * TILE_BYTES;
  const u32 patches = weight + WEIGHT_BYTES, raw = patches + STAGES * PATCH_BYTES, full = shared_address(barriers), empty = full + 8 * STAGES;
  const int group = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0), lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      barrier_init(full + 8 * i, 128);
      barrier_init(empty + 8 * i, 4);
    }
    fence_barriers();
  }
  const int blocks = (g.num_outputs + 63) / 64, block = blockIdx.x % blocks;
  const int program = blockIdx.x / blocks, programs = gridDim.x / blocks;
  follow_and_hold();
  __syncthreads();
  if (group == 0) {
    const Source source({input, g.height, g.width, g.padding_y, g.padding_x}, g.num_images);
    load_patches(
      Walk(0, g.num_tiles, program, programs), source, g.row_tiles, g.column_tiles, raw, patches, PATCH_BYTES, full, empty,
      Nothing());
    return;
  }
  // Barriers 1 and 2: all of a warpgroup; 3 and 4: its turn.
  const int consumer = group - LOADERS;
  if (consumer == 1) asm volatile("bar.arrive 3, 256;" ::: "memory");  // the first one begins
  load_weight(weight, weight_values, 64 * block, g.num_outputs);
  const int row = 64 * block + 16 * warp + lane / 4;
  const float shift[2] = {row < g.num_outputs ? load_bias(bias, row) : 0.f,
                          row + 8 < g.num_outputs ? load_bias(bias, row + 8) : 0.f};
  const u32 target = tiles + consumer * TILE_BYTES;
  Statistics statistics;
  asm volatile("bar.sync 5, 256;" ::: "memory");  // the weight is there
#pragma unroll 1
  for (Walk walk(consumer, g.num_tiles, program, programs); walk.index < walk.count; walk.index += CONSUMERS) {
    float sum[BN / 2];
#pragma unroll
    for (int i = 0; i < BN / 2; ++i) sum[i] = 0.f;
    const u32 patch = patches + walk.stage() * PATCH_BYTES;
    barrier_wait(full + 8 * walk.stage(), walk.parity());
    asm volatile("bar.sync %0, 256;" ::"r"(3 + consumer) : "memory");
    keep(sum);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      const int place = place_of(2 * step), next = 2 * step + 1 < CHUNKS ? place_of(2 * step + 1) : place;
      wgmma<false, false>(
        sum, core_descriptor(weight + step * 2048, 1024, 128),
        core_descriptor(patch + place, next - place, STRIDE_Y * PITCH * 16));
    }
    wgmma_commit();
    asm volatile("bar.arrive %0, 256;" ::"r"(4 - consumer) : "memory");
    wgmma_wait<0>();
    keep(sum);
    if (lane == 0) barrier_arrive(empty + 8 * walk.stage());
    if (walk.index + CONSUMERS >= walk.count) let_next_begin();
    if (threadIdx.x % 128 == 0) wait_for_reads();
    wait_for_group(1 + consumer);  // the tile before this one has left its place
    statistics.begin_tile(sum, shift);
    if (64 * block + 16 * warp < g.num_outputs) stage_tile(target, sum, shift, g.relu, statistics);
    wait_for_group(1 + consumer);
    if (threadIdx.x % 128 == 0) {
      const Tile tile(walk.tile(), g.row_tiles, g.column_tiles);
      store_box(&out_map, target, 64 * block, tile.column, tile.row, tile.image);
      commit_stores();
    }
  }
  if (threadIdx.x % 128 == 0) wait_for_stores();
#if STATISTICS
  statistics.finish(partial, program, programs, block, g.num_outputs);
#endif
}
