// Fills memory with a word: in CUDA graphs, in place of a memset (fills.py).
extern "C" __global__ void __launch_bounds__(256) fill(unsigned* to, unsigned word, unsigned num_words) {
#if __CUDA_ARCH__ >= 900  // the kernel before may still be running
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
  for (unsigned i = blockIdx.x * 256 + threadIdx.x; i < num_words; i += gridDim.x * 256) to[i] = word;
}
