// The weight's gradient of a network's first convolution, of an image with a few channels, on Hopper in 16 bits:
//
//   out (outputs x terms) = sum over pixels of grad (outputs x pixels) * window (pixels x terms)
//
// The windows are operands where they lie, as in forward.cu: for each chunk of a window's row, a product takes that chunk
// of all rows of taps, a row of the patch apart. The copy engine brings 64 outputs of the gradient of a tile, zeros where
// the tile has no pixel.
//
// Programs stay, and their sums in registers: two warpgroups take tiles in turns, and the second's sums are added to the
// first's in the end. They are parts of the result, float32.
//
// Macros: those of units.cuh; KIND "f16" | "bf16".
#include "units.cuh"
#include "wgmma.cuh"

struct Geometry {
  int row_tiles, column_tiles, num_tiles;   // of an image, of an image, of all
  int height, width, padding_y, padding_x;  // of the input
  int num_images, num_outputs;
};

constexpr int GRAD_BYTES = 8 * BR * 128, STAGE_BYTES = GRAD_BYTES + PATCH_BYTES;
constexpr int SUMS = 4 * TAPS_Y;  // of a chunk, of each thread
static_assert(BR % 2 == 0, "a product takes two rows of eight pixels");

// The gradient of a tile, beside its patch.
struct LoadGrad {
  const TensorMap* map;
  u32 stages, full;
  int first_output;

  __device__ __forceinline__ void operator()(const Tile& tile, int stage) const {
    if (threadIdx.x > 0) return;
    barrier_expect(full + 8 * stage, GRAD_BYTES);
    load_box(stages + stage * STAGE_BYTES, map, full + 8 * stage, first_output, tile.column, tile.row, tile.image);
  }
};

extern "C" __global__ void __launch_bounds__(128 * (LOADERS + CONSUMERS), 1) conv_stem_weight_grad(
    const __grid_constant__ TensorMap grad_map, const u16* __restrict__ input, float* __restrict__ partial,
    const __grid_constant__ Geometry g) {
  extern __shared__ unsigned char memory[];
  __shared__ __align__(8) u64 barriers[2 * STAGES];
  const u32 stages = (shared_address(memory) + 1023) & ~1023u, raw = stages + STAGES * STAGE_BYTES;
  const u32 full = shared_address(barriers), empty = full + 8 * STAGES;
  const int group = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0), lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      barrier_init(full + 8 * i, 128 + 1);
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
      Walk(0, g.num_tiles, program, programs), source, g.row_tiles, g.column_tiles, raw, stages + GRAD_BYTES, STAGE_BYTES,
      full, empty, LoadGrad{&grad_map, stages, full, 64 * block});
    return;
  }
  float sum[ROW_CHUNKS][SUMS];
#pragma unroll
  for (int i = 0; i < ROW_CHUNKS * SUMS; ++i) sum[i / SUMS][i % SUMS] = 0.f;
#pragma unroll 1
  for (Walk walk(group - LOADERS, g.num_tiles, program, programs); walk.index < walk.count; walk.index += CONSUMERS) {
    const u32 grad = stages + walk.stage() * STAGE_BYTES, patch = grad + GRAD_BYTES;
    barrier_wait(full + 8 * walk.stage(), walk.parity());
#pragma unroll
    for (int chunk = 0; chunk < ROW_CHUNKS; ++chunk) keep(sum[chunk]);
    wgmma_fence();
#pragma unroll
    for (int rows = 0; rows < BR; rows += 2) {
      const u64 a = transposed_descriptor(grad + rows * 1024, GRAD_BYTES);
#pragma unroll
      for (int chunk = 0; chunk < ROW_CHUNKS; ++chunk)
        wgmma<true, true>(
          sum[chunk], a,
          core_descriptor(patch + (rows * STRIDE_Y * PITCH + unit_of(chunk)) * 16, STRIDE_Y * PITCH * 16, PITCH * 16));
    }
    wgmma_commit();
    wgmma_wait<0>();
    if (lane == 0) barrier_arrive(empty + 8 * walk.stage());
    if (walk.index + CONSUMERS >= walk.count) let_next_begin();
  }
#pragma unroll
  for (int chunk = 0; chunk < ROW_CHUNKS; ++chunk) keep(sum[chunk]);
  const u32 mine = stages + threadIdx.x % 128 * 4;  // where both have read their last tile
  asm volatile("bar.sync 5, 256;" ::: "memory");
  if (group > LOADERS) {
#pragma unroll
    for (int i = 0; i < ROW_CHUNKS * SUMS; ++i)
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(mine + i * 512), "f"(sum[i / SUMS][i % SUMS]) : "memory");
  }
  asm volatile("bar.sync 5, 256;" ::: "memory");
  if (group > LOADERS) return;
#pragma unroll
  for (int chunk = 0; chunk < ROW_CHUNKS; ++chunk)
#pragma unroll
    for (int i = 0; i < SUMS; ++i) {  // row of taps i / 4
      float other;
      asm volatile("ld.shared.f32 %0, [%1];" : "=f"(other) : "r"(mine + (chunk * SUMS + i) * 512) : "memory");
      const int output = 64 * block + 16 * warp + lane / 4 + i % 4 / 2 * 8, term = lane % 4 * 2 + i % 2;
      const int tap = chunk * PIXELS + term / CHANNELS - LEAD;
      if (output < g.num_outputs && term < PIXELS * CHANNELS && (unsigned)tap < (unsigned)TAPS_X)
        partial[((((long long)program * g.num_outputs + output) * TAPS_Y + i / 4) * TAPS_X + tap) * CHANNELS +
                term % CHANNELS] = sum[chunk][i] + other;
    }
}
