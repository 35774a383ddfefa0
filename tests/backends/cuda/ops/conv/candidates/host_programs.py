"""Kernels in CUDA C++ (candidates/programs.py), compiled by g++ and run on the host: threads are coroutines, which wait
for each other at __syncthreads(). What differs from a GPU is how fast they are, and what the 16-bit conversions and the
tensor cores' instructions are made of.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from genesis.backends.cuda.ops.conv.candidates import programs

_CONVERSIONS = """
#pragma once
typedef unsigned int u32;
typedef unsigned short u16;
template <bool BF16> float half_of(u32 word, bool high) {
  const u16 bits = high ? word >> 16 : word;
  if (BF16) { const u32 wide = (u32)bits << 16; float r; memcpy(&r, &wide, 4); return r; }
  _Float16 r; memcpy(&r, &bits, 2); return r;
}
template <bool BF16> u16 half_from(float value) {
  u16 r;
  if (BF16) {
    u32 wide; memcpy(&wide, &value, 4);
    if (value != value) return 0x7FFF;
    return (wide + 0x7FFF + (wide >> 16 & 1)) >> 16;
  }
  const _Float16 half = value; memcpy(&r, &half, 2); return r;
}
template <bool BF16> u32 rounded_pair(float low, float high) {
  return half_from<BF16>(low) | (u32)half_from<BF16>(high) << 16;
}
"""

_INSTRUCTIONS = """
#pragma once
#include "conversions.cuh"
static void copy_up_to_16(void* to, const void* from, int bytes) {
  if ((size_t)to % 16 || (size_t)from % 16) abort();
  memset(to, 0, 16), memcpy(to, from, bytes);
}
static void copy_16(void* to, const void* from, bool inside) { copy_up_to_16(to, from, inside ? 16 : 0); }
template <int BYTES> void copy(void* to, const void* from, bool inside) {
  if ((size_t)to % BYTES || (size_t)from % BYTES) abort();
  inside ? memcpy(to, from, BYTES) : memset(to, 0, BYTES);
}
static void wait_for_copies() {}
static void commit_copies() {}
template <int NUMBER> void wait_for_copies_but() {}
static u32 paired(u32 first, u32 second, bool high) {
  return high ? first >> 16 | (second & 0xFFFF0000u) : (first & 0xFFFF) | second << 16;
}
// Each lane leaves its operands where the others of its warp find them. Two places in turns: no one is a turn ahead.
static u32 operands[2][MOST][6];
static int turns[MOST];
template <bool BF16> void product(float (&sums)[4], const u32 (&mine)[6], int columns) {
  const int thread = threadIdx.x, lane = thread % 32, turn = turns[thread]++ % 2;
  memcpy(operands[turn][thread], mine, sizeof mine);
  __syncthreads();
  const u32 (*warp)[6] = operands[turn] + thread / 32 * 32;
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < columns; ++k) {
      const int place = k % 8 / 2, left = row % 8 * 4 + place, right = column * 4 + place;
      const u32 a = warp[left][row / 8 + k / 8 * 2], b = warp[right][4 + k / 8];
      sums[i] += half_of<BF16>(a, k % 2) * half_of<BF16>(b, k % 2);
    }
  }
}
template <int N> void load_matrices_(u32 (&found)[N], const uint4* row, bool transposed) {
  static const u16* rows[2][MOST];
  static int turn_of[MOST];
  const int thread = threadIdx.x, lane = thread % 32, turn = turn_of[thread]++ % 2;
  if ((size_t)row % 16) abort();
  rows[turn][thread] = (const u16*)row;
  __syncthreads();
  const u16** warp = rows[turn] + thread / 32 * 32;
  const int g = lane / 4, t = lane % 4 * 2;
  for (int i = 0; i < N; ++i) {
    const u16** matrix = warp + 8 * i;
    found[i] = transposed ? matrix[t][g] | (u32)matrix[t + 1][g] << 16 : matrix[g][t] | (u32)matrix[g][t + 1] << 16;
  }
}
template <int N> void load_matrices(u32 (&found)[N], const uint4* row) { load_matrices_(found, row, false); }
template <int N> void load_transposed(u32 (&found)[N], const uint4* row) { load_matrices_(found, row, true); }
template <bool BF16> void multiply_16(float (&sums)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  product<BF16>(sums, {a0, a1, a2, a3, b0, b1}, 16);
}
template <bool BF16> void multiply_8(float (&sums)[4], u32 a0, u32 a1, u32 b0) {
  product<BF16>(sums, {a0, a1, 0, 0, b0, 0}, 8);
}
"""

# Copies are there at once, but no thread sees them before all have waited.
_COPY_ENGINE = """
#pragma once
typedef unsigned long long u64;
static u32 shared_address(const void* place) { return (const char*)place - (const char*)everything; }
struct Barrier { u32 count, left, phase; };
static Barrier& barrier_at(u32 place) { static Barrier all[64]; return all[place / 8 % 64]; }
static void barrier_init(u32 place, u32 count) { barrier_at(place) = {count, count, 0}; }
static void barrier_arrive(u32 place) {
  Barrier& b = barrier_at(place);
  if (--b.left == 0) b.left = b.count, ++b.phase;
}
static void barrier_arrive_behind_copies(u32 place) { barrier_arrive(place); }
static void barrier_wait(u32 place, u32 parity) {
  do __syncthreads(); while (barrier_at(place).phase % 2 == parity);
}
static void fence_barriers() {}
static void fence_for_engines() {}
static void wait_for_group(int) { __syncthreads(); }
"""

_WGMMA = """
#pragma once
static void wgmma_fence() {}
static void wgmma_commit() {}
template <int PENDING> void wgmma_wait() {}
template <int N> void keep(float (&)[N]) {}
static u64 descriptor(u32 address) { return address / 16; }
static u64 transposed_descriptor(u32 address, u32 block_bytes) { return address / 16 | (u64)block_bytes << 32; }
template <bool ADD, bool TRANSPOSED, int N> void wgmma(float (&d)[N], const u32 (&a)[4], u64 b) {
  static u32 operands[2][MOST][4];
  static int turns[MOST];
  const int thread = threadIdx.x, lane = thread % 32, turn = turns[thread]++ % 2;
  memcpy(operands[turn][thread], a, sizeof a);
  __syncthreads();
  const u32 (*warp)[4] = operands[turn] + thread / 32 * 32;
  const u32 begin = (u32)b * 16, block = b >> 32;
  for (int i = 0; i < N; ++i) {
    const int row = lane / 4 + i % 4 / 2 * 8, n = i / 4 * 8 + lane % 4 * 2 + i % 2;
    float sum = ADD ? d[i] : 0;
    for (int k = 0; k < 16; ++k) {
      const u32 place = begin + (TRANSPOSED ? n / 64 * block + k * 128 + n % 64 * 2 : n * 128 + k * 2);
      const u16 right = *(const u16*)((const char*)everything + (place ^ (place >> 7 & 7) << 4));
      const u32 left = warp[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2];
      sum += half_of<DTYPE == 2>(left, k % 2) * half_of<DTYPE == 2>(right, false);
    }
    d[i] = sum;
  }
}
"""

_HOST = r"""
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>  // <cmath> and <algorithm> would take longer to compile than all else
extern "C" float fmaf(float, float, float);
template <class T> static T min(T a, T b) { return b < a ? b : a; }
template <class T> static T max(T a, T b) { return a < b ? b : a; }
#define __device__
#define __global__
#define __shared__
#define __align__(bytes)
#define __forceinline__ inline
#define __launch_bounds__(...)
struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
static float2 make_float2(float x, float y) { return {x, y}; }
static uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
template <class T> static T __ldg(const T* p) { return *p; }
static float __uint_as_float(unsigned bits) { float r; memcpy(&r, &bits, 4); return r; }
static unsigned __float_as_uint(float value) { unsigned r; memcpy(&r, &value, 4); return r; }
struct Index { unsigned x; };
static Index threadIdx, blockIdx, gridDim;
static constexpr int MOST = 1024, STACK = 1 << 16;
static ucontext_t scheduler, threads_[MOST];
static char stacks[MOST][STACK];
static bool is_done[MOST];
static void __syncthreads() { swapcontext(&threads_[threadIdx.x], &scheduler); }
static void __syncwarp() { __syncthreads(); }
// Each lane leaves its number where its neighbour finds it. Two places in turns: no one is a turn ahead.
static float __shfl_xor_sync(unsigned, float value, int distance) {
  static float numbers[2][MOST];
  static int turns_of[MOST];
  const int thread = threadIdx.x, turn = turns_of[thread]++ % 2;
  numbers[turn][thread] = value;
  __syncthreads();
  return numbers[turn][thread ^ distance];
}
static constexpr int SHARED = 1 << 16;
#ifdef PATCH
alignas(16) uint4 patch[SHARED / 4];
static float* const everything = reinterpret_cast<float*>(patch);
#else
alignas(16) float memory[SHARED];
static float* const everything = memory;
#endif
#include SOURCE
static const void* const* addresses;
static Geometry geometry;
static void body() { CALL; is_done[threadIdx.x] = true; swapcontext(&threads_[threadIdx.x], &scheduler); }
// The number of threads that ended before others had waited as often as they; negative: of another geometry.
extern "C" int launch(int grid, int threads, int shared, const void* const* given, const void* structure, int size) {
  if (size != sizeof(Geometry)) return -1;
  addresses = given, gridDim.x = grid;
  memcpy(&geometry, structure, size);
  for (blockIdx.x = 0; blockIdx.x < (unsigned)grid; ++blockIdx.x) {
    for (int i = 0; i < SHARED; ++i) everything[i] = __builtin_nanf("");
    for (int t = 0; t < threads; ++t) {
      getcontext(&threads_[t]);
      threads_[t].uc_stack.ss_sp = stacks[t], threads_[t].uc_stack.ss_size = STACK, threads_[t].uc_link = &scheduler;
      makecontext(&threads_[t], body, 0);
      is_done[t] = false;
    }
    for (bool forward = true;; forward = !forward) {  // in turns, so that a race would show
      int waiting = 0;
      for (int i = 0; i < threads; ++i) {
        const int t = forward ? i : threads - 1 - i;
        threadIdx.x = t;
#ifdef UNEVEN
        if (is_done[t]) continue;
#else
        if (is_done[t]) return t + 1;
#endif
        swapcontext(&scheduler, &threads_[t]);
        waiting += !is_done[t];
      }
      if (waiting == 0) break;
#ifndef UNEVEN
      if (waiting != threads) return threads - waiting;
#endif
    }
    for (int i = shared / 4; i < SHARED; ++i) if (!__builtin_isnan(everything[i])) return -2;
  }
  return 0;
}
"""
_CALLS = {
    "depthwise": "depthwise((char*)addresses[0], (char*)addresses[1], (char*)addresses[2], (char*)addresses[3],"
    " (char*)addresses[4], (float*)addresses[5], geometry)",
    "depthwise_weight_grad": "depthwise_weight_grad((char*)addresses[0], (char*)addresses[1], (float*)addresses[2],"
    " geometry)",
    "patch_forward": "patch_forward((char*)addresses[0], (u16*)addresses[1], (char*)addresses[2], (char*)addresses[3],"
    " (char*)addresses[4], geometry)",
    "patch_weight_grad": "patch_weight_grad((char*)addresses[0], (char*)addresses[1], (float*)addresses[2], geometry)",
    "patch_fma_forward": "patch_fma_forward((char*)addresses[0], (float*)addresses[1], (float*)addresses[2],"
    " (float*)addresses[3], (float*)addresses[4], geometry)",
    "patch_fma_weight_grad": "patch_fma_weight_grad((char*)addresses[0], (char*)addresses[1], (float*)addresses[2],"
    " geometry)",
    "flat_gemm_forward": "flat_gemm_forward((char*)addresses[0], (u16*)addresses[1], (char*)addresses[2],"
    " (u16*)addresses[3], geometry)",
    "flat_gemm_warpgroups": "flat_gemm_warpgroups((char*)addresses[0], (u16*)addresses[1], (char*)addresses[2],"
    " (u16*)addresses[3], geometry)",
    "flat_gemm_weight_grad": "flat_gemm_weight_grad((char*)addresses[0], (char*)addresses[1], (float*)addresses[2],"
    " geometry)",
    "skinny_gemm_forward": "skinny_gemm_forward((char*)addresses[0], (char*)addresses[1], (char*)addresses[2],"
    " (char*)addresses[3], (char*)addresses[4], geometry)",
    "skinny_gemm_gradient": "skinny_gemm_gradient((char*)addresses[0], (char*)addresses[1], (char*)addresses[2],"
    " (char*)addresses[3], (char*)addresses[4], geometry)",
    "depthwise_toeplitz": "depthwise_toeplitz((u16*)addresses[0], (u16*)addresses[1], (u16*)addresses[2],"
    " (u16*)addresses[3], (u16*)addresses[4], geometry)",
}


def is_available() -> bool:
    return shutil.which("g++") is not None


def prepare(
    device: int, name: str, macros: Mapping[str, int], grid: int, threads: int, shared: int, num_addresses: int,
    **geometry: int,
) -> Callable[..., None]:  # fmt: skip
    """As programs.prepare()."""
    assert threads <= macros.get("THREADS", 1024)
    library, structure = _library(name, tuple(macros.items())), programs.packed(name, **geometry)

    def run(stream: int, *addresses: int) -> None:
        assert len(addresses) == num_addresses
        given = (ctypes.c_void_p * num_addresses)(*addresses)
        assert library.launch(grid, threads, shared, given, structure, len(structure)) == 0

    return run


@functools.cache
def _library(name: str, macros: tuple[tuple[str, int], ...]) -> ctypes.CDLL:
    source = programs.source(name)
    shared = (source.parent.parent / name for name in ("overlap.cuh", "channels.cuh", "splits.cuh"))
    here = ["-DPATCH"] if name.startswith(("depthwise_toeplitz", "patch")) else []
    here += ["-DUNEVEN"] if name.endswith("_warpgroups") else []  # one of which may have a tile more
    defined = [*(f"-D{macro}={value}" for macro, value in macros), *here]
    return build(source, [*source.parent.glob("*.cuh"), *shared], _CALLS[name], defined)


def build(source: Path, headers: Iterable[Path], call: str, defined: Iterable[str], before: str = "") -> ctypes.CDLL:
    """A kernel whose structure is called Geometry. before: lines of C++ before its source."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "conversions.cuh").write_text(_CONVERSIONS)
        (path / "instructions.cuh").write_text(_INSTRUCTIONS)
        (path / "wgmma").mkdir()
        (path / "wgmma" / "copy_engine.cuh").write_text(_COPY_ENGINE)
        (path / "wgmma" / "wgmma.cuh").write_text(_WGMMA)
        for each in (source, *headers):
            (path / each.name).write_text(each.read_text().replace('"../', '"'))
        (path / source.name).write_text(before + (path / source.name).read_text())
        (path / "host.cpp").write_text(_HOST)
        command = ["g++", "-std=c++17", "-O0", "-w", "-fno-strict-aliasing", "-fPIC", "-shared"]
        here = [f'-DSOURCE="{source.name}"', f"-DCALL={call}"]
        subprocess.run([*command, *defined, *here, "host.cpp", "-o", "host.so"], cwd=path, check=True)
        return ctypes.CDLL(str(path / "host.so"))
