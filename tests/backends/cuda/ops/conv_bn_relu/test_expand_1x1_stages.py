"""How the wide form's loading thread and warpgroups share stages (expand_1x1_stages.cuh), on the host: g++ compiles it,
and loads come in any order while warpgroups run ahead of each other.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from genesis.backends.cuda.ops.conv.candidates.wgmma import common as hopper
from genesis.backends.cuda.ops.conv_bn_relu import expand_1x1_hopper as wide_hopper

HOST = """
#include <cstdio>
#include <cstdlib>
#include <random>
#include <ucontext.h>
#include <vector>
#define __device__
#define __forceinline__ inline
typedef unsigned u32;
struct { int x; } threadIdx;

[[noreturn]] void fail(const char* what) { puts(what); exit(1); }

ucontext_t scheduler, parts[3];  // the loading thread, and a warpgroup each
int current;
bool ended[3];
void others() { swapcontext(&parts[current], &scheduler); }

struct Barrier {
  int expected = 0, pending = 0, bytes = 0;
  unsigned phase = 0;
  void change(int arrived, int more) {
    if (arrived > pending) fail("more arrivals than a barrier expects");
    pending -= arrived;
    bytes += more;
    if (pending || bytes) return;
    ++phase;
    pending = expected;
  }
} barriers[64];

void barrier_init(u32 barrier, u32 count) {
  barriers[barrier / 8].expected = barriers[barrier / 8].pending = count;
}
void fence_barriers() {}
void barrier_expect(u32 barrier, int bytes) { barriers[barrier / 8].change(1, bytes); }
void barrier_arrive(u32 barrier) { barriers[barrier / 8].change(1, 0); }
void barrier_wait(u32 barrier, u32 parity) {
  others();
  while ((barriers[barrier / 8].phase & 1) == parity) others();
}

#include "expand_1x1_stages.cuh"

struct Load { int stage, tile; u32 barrier; };
std::vector<Load> loads;  // on their way
int memory[STAGES], tiles;
std::mt19937 generator;
int draw(int n) { return generator() % n; }

void load() {
  for (Walk walk(0, tiles, 1, 3); walk.index < walk.count; ++walk.index) {
    wait_for_stage(0, walk);
    barrier_expect(full_barrier(0, walk), 1);
    loads.push_back({walk.stage(), walk.tile(), full_barrier(0, walk)});
  }
  ended[0] = true;
  others();
}
void use() {
  const int group = current;
  for (Walk walk(group - 1, tiles, 1, 3); walk.index < walk.count; walk.index += 2) {
    wait_for_tile(0, walk);
    for (int warp = 0; warp < 4; ++warp) {
      others();
      if (memory[walk.stage()] != walk.tile()) fail("a warpgroup has another tile than its own");
      threadIdx.x = 32 * warp;
      release_stage(0, walk);
    }
  }
  ended[group] = true;
  others();
}

int main() {
  for (int seed = 0; seed < 300; ++seed) {
    static char stacks[3][1 << 16];
    generator.seed(seed);
    tiles = draw(120);
    for (Barrier& barrier : barriers) barrier = Barrier();
    for (int& tile : memory) tile = -1;
    threadIdx.x = 0;
    begin_barriers(0);
    for (int i = 0; i < 3; ++i) {
      ended[i] = false;
      getcontext(&parts[i]);
      parts[i].uc_stack.ss_sp = stacks[i];
      parts[i].uc_stack.ss_size = sizeof stacks[i];
      makecontext(&parts[i], i ? use : load, 0);
    }
    const int slow = draw(3);  // how rarely loads come
    for (int steps = 0; !(ended[0] && ended[1] && ended[2]); ++steps) {
      if (steps == 100000) fail("nobody goes on");
      if (!loads.empty() && draw(1 + 4 * slow) == 0) {
        const int i = draw(loads.size());
        const Load load = loads[i];
        loads.erase(loads.begin() + i);
        memory[load.stage] = load.tile;
        barriers[load.barrier / 8].change(0, -1);
      }
      current = draw(3);
      if (!ended[current]) swapcontext(&scheduler, &parts[current]);
    }
    if (!loads.empty()) fail("a tile is loaded that nobody takes");
  }
  puts("fine");
}
"""
USED = {kernel.stages for kernel in wide_hopper.KERNELS}


@pytest.mark.parametrize("stages", sorted(USED | {2, 7}))
def test_a_warpgroup_gets_its_own_tiles(tmp_path: Path, stages: int) -> None:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    (tmp_path / "host.cpp").write_text(HOST)
    folders = [f"-I{Path(module.__file__).parent}" for module in (wide_hopper, hopper)]
    command = ["g++", "-std=c++17", "-O1", "-Wall", "-Werror", f"-DSTAGES={stages}", *folders, "host.cpp", "-o", "host"]
    subprocess.run(command, cwd=tmp_path, check=True)
    said = subprocess.run([tmp_path / "host"], capture_output=True, text=True, timeout=60, check=False)
    assert (said.returncode, said.stdout) == (0, "fine\n")
