// Kernels that come up while the one before them still runs. MapKernel launches them so: each has to call follow(), or
// follow_and_hold().
//
// Several launches that compute parts of one result run beside one another. All but the first leave out the waiting, as
// they read nothing of the launch before, and call end_behind() last of all: whoever comes next waits for the last one
// alone. When such a launch begins, the first one has, so all that came before that one has ended.
#pragma once

// Waits until the kernels before have ended and their results are there. The next one comes up when this one ends, or at
// let_next_begin(), which stands where little is left to do: of kernels that leave no room beside them, what came up
// earlier would be packed onto the few multiprocessors that are done first.
__device__ __forceinline__ void follow_and_hold() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel come up, once all programs have called it.
__device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ void follow() {
  follow_and_hold();
  let_next_begin();
}

// Waits until the launch before has ended, and with it all those that it ran beside.
__device__ __forceinline__ void end_behind() { follow_and_hold(); }
