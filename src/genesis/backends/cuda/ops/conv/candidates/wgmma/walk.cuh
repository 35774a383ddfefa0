// The tiles of a persistent program, and where they lie: STAGES of them are on the way at once.
#pragma once

// Which of the STAGES tiles on the way is next, and the parity of its barriers in this round.
struct Turn {
  int stage = 0;
  unsigned parity = 0;

  __device__ __forceinline__ void next() {
    if (++stage == STAGES) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// The same for programs whose warpgroups take tiles in turn: which ones, and where they are.
struct Walk {
  int index, first, step, count;  // the index-th of count tiles; they are first, first + step, ...

  __device__ __forceinline__ Walk(int start, int tiles, int program, int programs)
      : index(start), first(program), step(programs), count(program < tiles ? (tiles - 1 - program) / programs + 1 : 0) {}
  __device__ __forceinline__ int tile() const { return first + index * step; }
  __device__ __forceinline__ int stage() const { return index % STAGES; }
  // For who waits in every round of a stage: a parity cannot tell a round from the last but one.
  __device__ __forceinline__ unsigned parity() const { return index / STAGES & 1; }
};
