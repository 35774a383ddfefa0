// The CUDA runtime as far as PyTorch calls it, of a device that does nothing: memory is the host's, work is done at once.
#define _GNU_SOURCE
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <sys/mman.h>
#undef cudaGetDeviceProperties
#undef cudaStreamGetCaptureInfo
#undef cudaGraphNodeGetDependencies
#undef cudaLaunchKernelExC
static struct { char *p; size_t n; } blocks[65536];
static int num_blocks;
static cudaStream_t capturing;
static unsigned long long capture_id = 1;
static int is_device(const void *p) {
  for (int i = 0; i < num_blocks; i++) if (blocks[i].p && (char *)p >= blocks[i].p && (char *)p < blocks[i].p + blocks[i].n) return 1;
  return 0;
}
cudaError_t cudaGetDeviceCount(int *n) { *n = 1; return 0; }
cudaError_t cudaGetDevice(int *n) { *n = 0; return 0; }
cudaError_t cudaDriverGetVersion(int *v) { *v = 13000; return 0; }
cudaError_t cudaRuntimeGetVersion(int *v) { *v = 13000; return 0; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *a, int *b) { *a = 0; *b = -5; return 0; }
cudaError_t cudaDeviceCanAccessPeer(int *a, int d, int e) { *a = 0; return 0; }
cudaError_t cudaMemGetInfo(size_t *f, size_t *t) { *f = 130ull << 30; *t = 140ull << 30; return 0; }
cudaError_t cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr a, int d) {
  switch (a) {
    case cudaDevAttrMultiProcessorCount: *v = 132; break;
    case cudaDevAttrComputeCapabilityMajor: *v = 9; break;
    case cudaDevAttrMaxThreadsPerBlock: *v = 1024; break;
    case cudaDevAttrWarpSize: *v = 32; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *v = 49152; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *v = 232448; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *v = 233472; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *v = 2048; break;
    default: *v = 0;
  }
  return 0;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int d) {
  memset(p, 0, sizeof *p);
  strcpy(p->name, "stubbed device");
  p->totalGlobalMem = 140ull << 30; p->sharedMemPerBlock = 49152; p->regsPerBlock = 65536; p->warpSize = 32;
  p->maxThreadsPerBlock = 1024; p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024; p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647; p->maxGridSize[1] = p->maxGridSize[2] = 65535; p->major = 9; p->minor = 0;
  p->multiProcessorCount = 132; p->l2CacheSize = 50 << 20; p->maxThreadsPerMultiProcessor = 2048;
  p->sharedMemPerMultiprocessor = 233472; p->regsPerMultiprocessor = 65536; p->sharedMemPerBlockOptin = 232448;
  p->textureAlignment = 512; p->unifiedAddressing = 1; p->memoryBusWidth = 5120;
  return 0;
}
cudaError_t cudaMalloc(void **p, size_t n) {
  char *m = mmap(0, n + (2 << 20), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (m == MAP_FAILED) return cudaErrorMemoryAllocation;
  m = (char *)(((size_t)m + (2 << 20) - 1) & ~(size_t)((2 << 20) - 1));
  blocks[num_blocks].p = m; blocks[num_blocks++].n = n; *p = m; return 0;
}
cudaError_t cudaFree(void *p) {
  for (int i = 0; i < num_blocks; i++) if (p && blocks[i].p == p) { madvise(p, blocks[i].n, MADV_DONTNEED); blocks[i].p = 0; }
  return 0;
}
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned f) { *p = aligned_alloc(4096, (n + 4095) & ~4095ul); return 0; }
cudaError_t cudaFreeHost(void *p) { free(p); return 0; }
cudaError_t cudaStreamCreate(cudaStream_t *s) { *s = malloc(64); return 0; }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned f, int p) { *s = malloc(64); return 0; }
cudaError_t cudaStreamGetPriority(cudaStream_t s, int *p) { *p = 0; return 0; }
cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode m) { capturing = s; capture_id++; return 0; }
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g) { capturing = 0; *g = malloc(64); return 0; }
cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *t) { *t = s && s == capturing ? 1 : 0; return 0; }
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *t, unsigned long long *id, cudaGraph_t *g,
    const cudaGraphNode_t **d, const cudaGraphEdgeData **e, size_t *n) {
  int on = s && s == capturing; *t = on; if (id) *id = on ? capture_id : 0; if (g) *g = (cudaGraph_t)1; if (n) *n = 0; if (d) *d = 0; return 0; }
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long f) { *x = malloc(64); return 0; }
cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *n, size_t *k) { *k = 1; return 0; }
cudaError_t cudaEventCreate(cudaEvent_t *e) { *e = malloc(64); return 0; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned f) { *e = malloc(64); return 0; }
cudaError_t cudaEventElapsedTime(float *t, cudaEvent_t a, cudaEvent_t b) { *t = 1; return 0; }
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
  memset(a, 0, sizeof *a); a->type = is_device(p) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered; a->devicePointer = (void *)p; return 0; }
cudaError_t cudaMemcpyAsync(void *d, const void *s, size_t n, enum cudaMemcpyKind k, cudaStream_t t) {
  if (!(t && t == capturing) && k != cudaMemcpyDeviceToDevice) memcpy(d, s, n); return 0; }
cudaError_t cudaMemcpy(void *d, const void *s, size_t n, enum cudaMemcpyKind k) { memcpy(d, s, n); return 0; }
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *f) { memset(a, 0, sizeof *a); a->maxThreadsPerBlock = 1024; a->binaryVersion = 90; a->ptxVersion = 90; return 0; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int b, size_t s, unsigned g) { *n = 2; return 0; }
cudaError_t cudaGetSymbolAddress(void **p, const void *s) { *p = malloc(4096); return 0; }
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *p, int d) { *p = malloc(64); return 0; }
const char *cudaGetErrorString(cudaError_t e) { return "stubbed error"; }
const char *cudaGetErrorName(cudaError_t e) { return "stubbedError"; }
static long nothing(void) { return 0; }
cudaError_t cudaGetDriverEntryPointByVersion(const char *s, void **f, unsigned v, unsigned long long g, enum cudaDriverEntryPointQueryResult *r) {
  void *lib = dlopen("libcuda.so.1", RTLD_NOW); void *p = lib ? dlsym(lib, s) : 0; *f = p ? p : (void *)nothing; if (r) *r = 0; return 0; }
cudaError_t __cudaGetKernel(void **k, const void *f) { *k = (void *)f; return 0; }
unsigned __cudaPushCallConfiguration(dim3 *g, dim3 *b, size_t s, void *t) { return 0; }
cudaError_t __cudaPopCallConfiguration(dim3 *g, dim3 *b, size_t *s, void *t) { *s = 0; *(void **)t = 0; return 0; }
void ** __cudaRegisterFatBinary(void *c) { return malloc(64); }
char __cudaInitModule(void **h) { return 1; }
