// Sums that a cluster's programs add up through each other's shared memory: no sums go through the device's memory, and
// no other kernel adds them up.
#pragma once

typedef unsigned int u32;

__device__ __forceinline__ void arrive_in_cluster() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
// Until all threads of the cluster have arrived, or ended.
__device__ __forceinline__ void wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

__device__ __forceinline__ u32 rank_in_cluster() {
  u32 r;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}

// What stands at this place of another program's shared memory.
__device__ __forceinline__ float load_from(u32 rank, u32 place) {
  float v;
  asm volatile(
    "{\n.reg .u32 there;\nmapa.shared::cluster.u32 there, %1, %2;\nld.shared::cluster.f32 %0, [there];\n}\n"
    : "=f"(v) : "r"(place), "r"(rank) : "memory");
  return v;
}

// Adds up sum over PROGRAMS programs, in their order and in float64; each keeps its part, sum[rank * N / PROGRAMS] on,
// as sum[0] on. memory: of THREADS * N numbers, which nobody reads any more. Before it ends, or changes that memory, a
// program calls wait_for_cluster().
template <int PROGRAMS, int THREADS, int N>
__device__ __forceinline__ void add_up_in_cluster(float (&sum)[N], u32 memory, int thread) {
  static_assert(N % PROGRAMS == 0, "as much for each program");
  constexpr int PART = N / PROGRAMS;
  const u32 mine = memory + 4 * thread;
#pragma unroll
  for (int i = 0; i < N; ++i)
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(mine + i * 4 * THREADS), "f"(sum[i]) : "memory");
  arrive_in_cluster();
  wait_for_cluster();
  const u32 part = mine + rank_in_cluster() * (PART * 4 * THREADS);
#pragma unroll
  for (int i = 0; i < PART; ++i) {
    double total = 0.;
#pragma unroll
    for (int program = 0; program < PROGRAMS; ++program) total += load_from(program, part + i * 4 * THREADS);
    sum[i] = (float)total;
  }
  arrive_in_cluster();
}
