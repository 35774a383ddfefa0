"""The runtime of kernels: arrays, memory, streams and events, DLPack, reports of faults, the cache on disk."""
