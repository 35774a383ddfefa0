"""A CUDA device on which everything is free, for PyTorch's own CUDA build: what a step costs the host, without a GPU.

    pip install --no-deps --target SITE torch==2.11.0 torchvision==0.26.0
    python benchmarks/free_cuda/__init__.py SITE FOLDER      builds the libraries that PyTorch links, as stubs

Then LD_LIBRARY_PATH=FOLDER, TRITON_LIBCUDA_PATH=FOLDER and SITE before the other packages in PYTHONPATH make
torch.cuda.is_available() true. Allocators, streams, autograd, Dynamo, Inductor and the trees of CUDA graphs are the
real ones; kernels are not run, so that values mean nothing. cudart.c and cuda.c have what returns something; all other
functions return 0. install() has Genesis' ops only allocate their results, and its kernels not compiled.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tempfile
import types
from collections import defaultdict
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_USERS = (
    "libtorch_cuda.so", "libc10_cuda.so", "libtorch_cuda_linalg.so", "libtorch_python.so", "libtorch_nvshmem.so",
)  # fmt: skip
_UNVERSIONED = {
    "nccl": "libnccl.so.2", "cusparseLt": "libcusparseLt.so.0", "cuFile": "libcufile.so.0", "curand": "libcurand.so.10",
}  # fmt: skip
_WITH_RESULTS = {
    "libcublas.so": """int cublasCreate_v2(void **h) { *h = malloc(64); return 0; }
        int cublasGetVersion_v2(void *h, int *v) { *v = 130000; return 0; }""",
    "libcublasLt.so": """int cublasLtCreate(void **h) { *h = malloc(64); return 0; }
        int cublasLtMatmulAlgoGetHeuristic(void *a, void *b, void *c, void *d, void *e, void *f, void *p, int n,
            void *r, int *k) { memset(r, 0, 96); *k = 1; return 0; }""",
    "libcudnn.so": """int cudnnCreate(void **h) { *h = malloc(64); return 0; }
        long cudnnGetVersion(void) { return 91900; }
        long cudnnGetCudartVersion(void) { return 13000; }""",
    "libnccl.so": "int ncclGetVersion(int *v) { *v = 22800; return 0; }",
}


def build(site: Path, folder: Path, include: str = "/usr/local/cuda/include") -> None:
    """Compile the stubs. include: of CUDA's headers."""
    folder.mkdir(parents=True, exist_ok=True)
    for library, names in _wanted(site / "torch" / "lib").items():
        sources, given = [], next((c for stem, c in _WITH_RESULTS.items() if library.startswith(stem)), "")
        version = "NVSHMEM" if "nvshmem" in library else library
        if "cudart" in library:
            sources, given = [str(_HERE / "cudart.c")], ""
            names -= set(re.findall(r"\b(\w*cuda[A-Z]\w*)\([^;{]*\)\s*\{", (_HERE / "cudart.c").read_text()))
        names -= set(re.findall(r"\b(\w+)\([^;{]*\)\s*\{", given))
        stubs = "".join(f"long {name}(void) {{ return 0; }}\n" for name in sorted(names))
        _compile(folder / library, [stubs, given], sources, include, version)
    _compile(folder / "libcuda.so.1", [], [str(_HERE / "cuda.c"), str(_HERE / "nothing.c")], include, None)


def _wanted(libraries: Path) -> dict[str, set[str]]:
    """The functions that PyTorch wants, by library."""
    found: dict[str, set[str]] = defaultdict(set, {library: set() for library in _UNVERSIONED.values()})
    for user in _USERS:
        command = ["nm", "-D", "--undefined-only", str(libraries / user)]
        for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
            name, _, version = line.split()[-1].partition("@")
            if version == "NVSHMEM":
                found["libnvshmem_host.so.3"].add(name)
            elif re.match(r"lib(cublas|cublasLt|cudart|cudnn|cufft|cusolver|cusparse)\.so", version):
                found[version].add(name)
            elif not version:
                for prefix in _UNVERSIONED:
                    if name.startswith(prefix):
                        found[_UNVERSIONED[prefix]].add(name)
    return found


def _compile(library: Path, texts: list[str], sources: list[str], include: str, version: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        text, script = Path(folder, "stubs.c"), Path(folder, "versions")
        text.write_text("#include <stdlib.h>\n#include <string.h>\n" + "\n".join(texts))
        script.write_text(f"{version} {{ *; }};\n")
        versions = [] if version is None else [f"-Wl,--version-script={script}"]
        flags = ["-shared", "-fPIC", "-O1", "-w", "-fno-builtin", f"-I{include}", f"-Wl,-soname,{library.name}"]
        command = ["gcc", *flags, *versions, "-o", str(library), str(text), *sources, "-ldl"]
        subprocess.run(command, check=True)


def install() -> None:
    """From now on Genesis' ops of PyTorch only allocate their results, and its kernels are not compiled."""
    import torch
    from cuda.bindings import driver as cu

    from genesis.backends.cuda.driver import cublaslt, cuda_driver, cuda_kernel, cudnn

    torch.backends.cudnn.enabled = False  # a stub has no plans for the convolutions that stay PyTorch's

    def load_kernel(self: Any, device: int, kernel: Any, signature: Any) -> Any:
        kinds = [kind for kind, param in zip(signature.types, kernel.params, strict=True) if not param.is_constexpr]
        metadata: Any = types.SimpleNamespace(num_warps=4, num_ctas=1, shared=0, global_scratch_size=0)
        return cuda_kernel.CudaKernel(self, device, kernel.__name__, cu.CUfunction(0), kinds, metadata)

    shapes: dict[str, Any] = {}
    library: Any = torch.library.Library
    impl, fake = library.impl, torch.library.register_fake

    def implement(self: Any, name: str, run: Any, key: str = "", **how: Any) -> Any:
        if self.ns == "genesis" and key == "CUDA":
            return impl(self, name, lambda *args, **rest: shapes[f"genesis::{name}"](*args, **rest), key, **how)
        return impl(self, name, run, key, **how)

    def register(name: str, run: Any = None, **how: Any) -> Any:
        shapes[name] = run
        return fake(name, run, **how)

    libraries: Any = cublaslt, cudnn
    for each in libraries:
        each.installed = lambda: ""
    libraries[0]._library = libraries[1]._module = lambda: None
    cuda_driver.CudaDriver.load_kernel = load_kernel  # type: ignore[method-assign]
    library.impl, torch.library.register_fake = implement, register
    for name in ("dynamo", "norms"):  # which register the ops
        importlib.import_module(f"genesis.torch.{name}")
    library.impl, torch.library.register_fake = impl, fake


if __name__ == "__main__":
    build(Path(sys.argv[1]), Path(sys.argv[2]).absolute(), *sys.argv[3:])
