// A 3x3 convolution of few channels on Hopper that loads a pixel once for all nine taps:
//
//   out (outputs x pixels) = sum over taps of weight (outputs x channels) * input (channels x pixels at the tap)
//
// A tile of the result is 8 columns by BR rows of an image, 64 outputs deep. The pixels that its taps meet, 10 columns by
// BR + 2 rows, lie in shared memory as the copy engine puts them there: a patch, a line of 128 bytes each, zeros where
// there is no pixel. To a tap belong the eight columns from its own on, of the BR rows from its own on: eight lines of
// each row of the patch, an operand of the matrix instruction whose groups of eight lines stand a row apart. Pixels of
// 256 bytes come as two such slabs, one patch after the other.
//
// Pixels are the products' columns, up to 256, and outputs their rows. The other way round, 64 outputs as columns, shared
// memory would have to give as much as it can: two operands of 2 KB in 32 clocks. Like this it has half of the time left.
//
// Programs stay: one keeps the weight of all taps, 72 KB a slab, and takes one tile after the other. A thread loads
// patches, two warpgroups multiply in turns, so that one writes its tile while the other's products run; it writes it
// where the patch was, from where the copy engine takes it to memory, past the image's borders nothing.
//
// TF32: float32, of which 11 bits take part. The copy engine rounds, the tensor core would cut off. Results are twice as
// large, and go from registers to memory: 32 bytes of a pixel from eight lanes.
//
// The input's gradient is the same sum over the gradient, with the taps in reverse order, the weight transposed.
//
// Macros: BR rows of a tile; SLABS of 128 bytes of a pixel; STAGES patches on the way; TRANSPOSED_WEIGHT: the weight lies
// in memory with the result's channels innermost; TF32, or KIND "f16" | "bf16"; STATISTICS: of the result's channels, too
// (16 bits only); tiles are whole then.
#define BN (8 * BR)                // pixels of a tile
#define PITCH 10                   // pixels of a patch's row
#define TAPS 9
#define TAP_BYTES (64 * 128)       // of a slab of the weight
#define SLAB_CHANNELS (TF32 ? 32 : 64)
#define LOADED_BYTES (PITCH * (BR + 2) * 128)
#define PATCH_BYTES ((LOADED_BYTES + 1023) / 1024 * 1024)
#define LOADERS 1  // warpgroups, ahead of those that multiply
#define CONSUMERS 2
#include "outputs_as_rows.cuh"

struct Geometry {
  int row_tiles, column_tiles, num_tiles;  // of an image, of an image, of all
  int low_y, low_x;                        // result (i, j) meets its first tap at input (i + low_y, j + low_x)
  int num_outputs, relu, height, width;    // of the result
};

struct Tile {
  int column, row, image;

  __device__ __forceinline__ Tile(int k, const Geometry& g)
      : column(k % g.column_tiles * 8), row(k / g.column_tiles % g.row_tiles * BR),
        image(k / (g.column_tiles * g.row_tiles)) {}
};

// Where the patch of a slab is, of those that a program takes one after the other.
struct Slot {
  int stage;
  u32 parity;

  __device__ __forceinline__ Slot(int tile, int slab)
      : stage((tile * SLABS + slab) % STAGES), parity((tile * SLABS + slab) / STAGES & 1) {}
};

#if TF32
// A lane has two columns of each row, and two outputs, n and n + 8.
__device__ __forceinline__ void store(
    const float (&sum)[BN / 2], const Tile& tile, int n, const float (&shift)[2], float* out, const Geometry& g) {
  const int column = tile.column + threadIdx.x % 4 * 2;
  const long long row_step = (long long)g.width * g.num_outputs;
  float* to = out + ((long long)tile.image * g.height + tile.row) * row_step + (long long)column * g.num_outputs + n;
#pragma unroll
  for (int i = 0; i < BR; ++i, to += row_step) {
    if (tile.row + i >= g.height) return;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (column + e >= g.width) continue;
      to[e * g.num_outputs] = finished(sum[4 * i + e], shift[0], g.relu);
      to[e * g.num_outputs + 8] = finished(sum[4 * i + 2 + e], shift[1], g.relu);
    }
  }
}

__device__ __forceinline__ float round_to_tf32(float v) {
  u32 r;
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(r) : "f"(v));
  return __uint_as_float(r);
}

// The weight's block for the input's gradient, (inputs of the block, all outputs), where the instructions take 32 bits
// only with the terms innermost: from (outputs, taps, inputs) in memory. All threads together; a lane has an output.
__device__ __forceinline__ void load_transposed(u32 target, const float* weight, int block, int num_inputs) {
  const int lane = threadIdx.x % 32;
#pragma unroll 6
  for (int i = threadIdx.x / 32; i < SLABS * TAPS * 16; i += 4 * (LOADERS + CONSUMERS)) {
    const int slab = i / (TAPS * 16), tap = i / 16 % TAPS, first = i % 16 * 4;
    const long long line = (long long)(32 * slab + lane) * TAPS + TAPS - 1 - tap;
    const float4 v = __ldg((const float4*)(weight + line * num_inputs + 64 * block + first));
    const float values[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = first + e;
      const u32 place = row * 128 + (lane / 4 ^ row % 8) * 16 + lane % 4 * 4;
      asm volatile("st.shared.f32 [%0], %1;"
        ::"r"(target + (slab * TAPS + tap) * TAP_BYTES + place), "f"(round_to_tf32(values[e])) : "memory");
    }
  }
}
#endif

extern "C" __global__ void __launch_bounds__(128 * (LOADERS + CONSUMERS), 1) conv_patch(
    const __grid_constant__ TensorMap input_map, const __grid_constant__ TensorMap weight_map,
#if TF32
    const void* __restrict__ bias, const float* __restrict__ weight_values, float* __restrict__ out,
#else
    const __grid_constant__ TensorMap out_map, const void* __restrict__ bias,
#endif
#if STATISTICS
    float* __restrict__ partial,
#endif
    const __grid_constant__ Geometry g) {
  extern __shared__ unsigned char memory[];
  __shared__ __align__(8) u64 barriers[3 * STAGES + SLABS];
  const u32 weight = (shared_address(memory) + 1023) & ~1023u, patches = weight + SLABS * TAPS * TAP_BYTES;
  const u32 full = shared_address(barriers), written = full + 8 * STAGES, empty = written + 8 * STAGES;
  const u32 ready = empty + 8 * STAGES;
  const int group = threadIdx.x / 128, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      barrier_init(full + 8 * i, 1);
      barrier_init(written + 8 * i, 128);
      barrier_init(empty + 8 * i, 1);
    }
    for (int slab = 0; slab < SLABS; ++slab) barrier_init(ready + 8 * slab, 1);
    fence_barriers();
  }
  const int blocks = g.num_outputs / 64, block = blockIdx.x % blocks;
  const int program = blockIdx.x / blocks, programs = gridDim.x / blocks;
  follow_and_hold();
#if TF32 && TRANSPOSED_WEIGHT
  load_transposed(weight, weight_values, block, g.num_outputs);
  fence_for_engines();
#endif
  __syncthreads();
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) {
#pragma unroll 1
      for (Walk walk(0, g.num_tiles, program, programs); walk.index < walk.count; ++walk.index) {
        const Tile tile(walk.tile(), g);
#pragma unroll 1
        for (int slab = 0; slab < SLABS; ++slab) {
          if (walk.index == 0 && !(TF32 && TRANSPOSED_WEIGHT)) {
            barrier_expect(ready + 8 * slab, TAPS * TAP_BYTES);
#pragma unroll 1
            for (int tap = 0; tap < TAPS; ++tap) {
              const u32 target = weight + (slab * TAPS + tap) * TAP_BYTES;
              if (TRANSPOSED_WEIGHT)
                load_box(target, &weight_map, ready + 8 * slab, 64 * block, TAPS - 1 - tap, SLAB_CHANNELS * slab);
              else
                load_box(target, &weight_map, ready + 8 * slab, SLAB_CHANNELS * slab, tap, 64 * block);
            }
          }
          const Slot slot(walk.index, slab);
          const u32 barrier = full + 8 * slot.stage;
          barrier_wait(empty + 8 * slot.stage, slot.parity ^ 1);
          barrier_expect(barrier, LOADED_BYTES);
          load_box(patches + slot.stage * PATCH_BYTES, &input_map, barrier, SLAB_CHANNELS * slab,
                   tile.column + g.low_x, tile.row + g.low_y, tile.image);
        }
      }
#if !TF32
    } else if (threadIdx.x == 32) {
#pragma unroll 1
      for (Walk walk(0, g.num_tiles, program, programs); walk.index < walk.count; ++walk.index) {
        const Tile tile(walk.tile(), g);
        const Slot last(walk.index, SLABS - 1);
        barrier_wait(written + 8 * walk.stage(), walk.parity());
        store_box(&out_map, patches + last.stage * PATCH_BYTES, 64 * block, tile.column, tile.row, tile.image);
        commit_stores();
        wait_for_reads();
        barrier_arrive(empty + 8 * last.stage);
      }
      wait_for_stores();
#endif
    }
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  // Barriers 1 and 2: all of a warpgroup; 3 and 4: its turn.
  if (group == CONSUMERS) asm volatile("bar.arrive 3, 256;" ::: "memory");  // the first one begins
  constexpr bool IS_TRANSPOSED = TRANSPOSED_WEIGHT && !TF32;  // as it lies in shared memory
  const u64 a = IS_TRANSPOSED ? transposed_descriptor(weight, TAP_BYTES) : descriptor(weight);
  const int row = 16 * warp + lane / 4;
  const float shift[2] = {load_bias(bias, 64 * block + row), load_bias(bias, 64 * block + row + 8)};
  if (!(TF32 && TRANSPOSED_WEIGHT)) barrier_wait(ready, 0);
#if !TF32
  Statistics statistics;
#endif
  for (Walk walk(group - 1, g.num_tiles, program, programs); walk.index < walk.count; walk.index += CONSUMERS) {
    float sum[BN / 2];
#pragma unroll
    for (int i = 0; i < BN / 2; ++i) sum[i] = 0.f;
    // The turn, then the patch: a parity cannot tell a round from the last but one. With two stages for two slabs the
    // previous tile had the same places, and only with the turn it is certain that its patches had come.
    asm volatile("bar.sync %0, 256;" ::"r"(2 + group) : "memory");
    keep(sum);
    Slot slot(walk.index, 0);
#pragma unroll
    for (int slab = 0; slab < SLABS; ++slab) {
      const Slot previous = slot;
      slot = Slot(walk.index, slab);
      if (slab > 0 && !(TF32 && TRANSPOSED_WEIGHT)) barrier_wait(ready + 8 * slab, 0);
      barrier_wait(full + 8 * slot.stage, slot.parity);
      const u64 b = descriptor(patches + slot.stage * PATCH_BYTES, PITCH * 128);
      wgmma_fence();
#pragma unroll
      for (int tap = 0; tap < TAPS; ++tap) {
#pragma unroll
        for (int j = 0; j < 4; ++j)
          wgmma<IS_TRANSPOSED, false>(
            sum, a + (slab * TAPS + tap) * (TAP_BYTES / 16) + (IS_TRANSPOSED ? 128 : 2) * j,
            b + (tap / 3 * PITCH + tap % 3) * 8 + 2 * j);
        if (slab > 0 && tap == 0) {  // the tensor core has enough to do: time to hand back the previous patch
          wgmma_commit();
          wgmma_wait<1>();
          wait_for_group(group);
          if (threadIdx.x % 128 == 0) barrier_arrive(empty + 8 * previous.stage);
          wgmma_fence();
        }
      }
      wgmma_commit();
    }
    asm volatile("bar.arrive %0, 256;" ::"r"(5 - group) : "memory");
    wgmma_wait<0>();
    keep(sum);
    wait_for_group(group);  // all have read the patch
    if (walk.index + CONSUMERS >= walk.count) let_next_begin();
#if TF32
    if (threadIdx.x % 128 == 0) barrier_arrive(empty + 8 * slot.stage);
    store(sum, Tile(walk.tile(), g), 64 * block + row, shift, out, g);
#else
    statistics.begin_tile(sum, shift);
    stage_tile(patches + slot.stage * PATCH_BYTES, sum, shift, g.relu, statistics);
    barrier_arrive(written + 8 * walk.stage());
#endif
  }
#if STATISTICS
  statistics.finish(partial, program, programs, block, g.num_outputs);
#endif
}
