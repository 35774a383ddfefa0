// The CUDA driver as far as Triton and cuda.bindings call it, of a device that does nothing.
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#undef cuGetProcAddress
#undef cuDeviceTotalMem
#undef cuMemGetInfo
#undef cuCtxGetDevice
#define S CUresult
static long nothing(void) { return 0; }
S cuInit(unsigned f) { return 0; }
S cuDriverGetVersion(int *v) { *v = 13000; return 0; }
S cuDeviceGetCount(int *n) { *n = 1; return 0; }
S cuDeviceGet(CUdevice *d, int o) { *d = 0; return 0; }
S cuDeviceGetName(char *n, int l, CUdevice d) { strncpy(n, "stubbed device", l); return 0; }
S cuDeviceGetUuid_v2(CUuuid *u, CUdevice d) { memset(u, 1, 16); return 0; }
S cuDeviceTotalMem_v2(size_t *n, CUdevice d) { *n = 140ull << 30; return 0; }
S cuMemGetInfo_v2(size_t *f, size_t *t) { *f = 130ull << 30; *t = 140ull << 30; return 0; }
S cuDeviceGetAttribute(int *v, CUdevice_attribute a, CUdevice d) {
  switch ((int)a) { case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *v = 132; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *v = 9; break; case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *v = 0; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *v = 1024; break; case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *v = 32; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *v = 49152; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *v = 232448; break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: *v = 65536; break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: *v = 65536; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *v = 2048; break;
    default: *v = 1; } return 0; }
S cuCtxGetCurrent(CUcontext *c) { *c = (CUcontext)16; return 0; }
S cuCtxGetDevice(CUdevice *d) { *d = 0; return 0; }
S cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) { *c = (CUcontext)16; return 0; }
S cuDevicePrimaryCtxGetState(CUdevice d, unsigned *f, int *a) { *f = 0; *a = 1; return 0; }
S cuModuleLoadData(CUmodule *m, const void *i) { *m = malloc(64); return 0; }
S cuModuleLoadDataEx(CUmodule *m, const void *i, unsigned n, CUjit_option *o, void **v) { *m = malloc(64); return 0; }
S cuModuleGetFunction(CUfunction *f, CUmodule m, const char *n) { *f = malloc(64); return 0; }
S cuModuleLoad(CUmodule *m, const char *i) { *m = malloc(64); return 0; }
S cuFuncGetAttribute(int *v, CUfunction_attribute a, CUfunction f) { *v = a == CU_FUNC_ATTRIBUTE_NUM_REGS ? 32 : a == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0; return 0; }
S cuOccupancyMaxActiveClusters(int *n, CUfunction f, const CUlaunchConfig *c) { *n = 16; return 0; }
S cuPointerGetAttribute(void *d, CUpointer_attribute a, CUdeviceptr p) { if (a == CU_POINTER_ATTRIBUTE_DEVICE_POINTER) *(CUdeviceptr *)d = p; else *(int *)d = 0; return 0; }
S cuGetErrorString(CUresult e, const char **s) { *s = "stubbed error"; return 0; }
S cuGetErrorName(CUresult e, const char **s) { *s = "stubbed"; return 0; }
S cuStreamGetCaptureInfo_v2(CUstream s, CUstreamCaptureStatus *t) { *t = 0; return 0; }
S cuGetProcAddress_v2(const char *s, void **f, int v, cuuint64_t g, CUdriverProcAddressQueryResult *r) {
  char b[256]; void *p = 0;
  snprintf(b, 256, "%s_v2", s); p = dlsym(RTLD_DEFAULT, b); if (!p) { void *l = dlopen("libcuda.so.1", RTLD_NOW); p = dlsym(l, b); if (!p) p = dlsym(l, s); }
  *f = p ? p : (void *)nothing; if (r) *r = 0; return 0; }
S cuGetProcAddress(const char *s, void **f, int v, cuuint64_t g) { return cuGetProcAddress_v2(s, f, v, g, 0); }
#include <sys/mman.h>
S cuMemAllocFromPoolAsync(CUdeviceptr *p, size_t n, CUmemoryPool q, CUstream s) { *p = (CUdeviceptr)mmap(0, n + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0); return 0; }
S cuMemHostAlloc(void **p, size_t n, unsigned f) { *p = aligned_alloc(4096, (n + 4095) & ~4095ul); return 0; }
S cuMemPoolCreate(CUmemoryPool *p, const CUmemPoolProps *q) { *p = malloc(64); return 0; }
S cuDeviceGetDefaultMemPool(CUmemoryPool *p, CUdevice d) { *p = malloc(64); return 0; }
S cuStreamCreateWithPriority(CUstream *p, unsigned f, int q) { *p = malloc(64); return 0; }
S cuEventCreate(CUevent *p, unsigned f) { *p = malloc(64); return 0; }
S cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus *t) {
  static int (*ask)(void *, int *); if (!ask) { void *l = dlopen("libcudart.so.13", RTLD_NOW); ask = dlsym(l, "cudaStreamIsCapturing"); }
  int v = 0; ask(s, &v); *t = v; return 0; }
S cuStreamGetPriority(CUstream s, int *p) { *p = 0; return 0; }
S cuEventElapsedTime_v2(float *t, CUevent a, CUevent b) { *t = 1; return 0; }
