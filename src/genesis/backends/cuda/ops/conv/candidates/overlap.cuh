// Kernels that come up while the one before them still runs. MapKernel launches them so: each has to call follow().
#pragma once

// Waits until the kernels before have ended and their results are there; lets the next kernel come up meanwhile.
__device__ __forceinline__ void follow() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
