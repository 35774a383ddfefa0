// Kernels that come up while the one before them still runs. MapKernel launches them so: each has to call follow().
//
// Several launches that compute parts of one result run beside one another. All but the first call begin_beside(), as
// they read nothing of the launch before, and end_behind() last of all: whoever comes next waits for the last one alone.
#pragma once

// Waits until the kernels before have ended and their results are there; lets the next kernel come up meanwhile.
__device__ __forceinline__ void follow() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The launch before has begun, so all that came before it has ended. Lets the next kernel come up.
__device__ __forceinline__ void begin_beside() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the launch before has ended, and with it all those that it ran beside.
__device__ __forceinline__ void end_behind() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
