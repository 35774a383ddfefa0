// Kernels that come up while the one before them still runs. MapKernel launches them so: each has to call follow().
//
// Macro: FOLLOWS 0: this one does not, nor does the next.
#pragma once
#ifndef FOLLOWS
#define FOLLOWS 1
#endif

// Waits until the kernels before have ended and their results are there; lets the next kernel come up meanwhile.
__device__ __forceinline__ void follow() {
#if FOLLOWS && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
