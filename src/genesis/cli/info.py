"""`genesis info`: what a bug report should say about the machine and the installation."""

from __future__ import annotations

import argparse
import dataclasses
import os
import platform
from importlib import metadata
from pathlib import Path

import genesis
from genesis import cuda
from genesis.cuda import plans
from genesis.cuda.device import DeviceProperties, driver_version
from genesis.distribution import NAME
from genesis.errors import GenesisError
from genesis.settings import settings

HELP = "show versions, devices, precision policy, caches and settings"
PACKAGES = (
    "torch", "numpy", "safetensors", "triton", "cuda-bindings", "cuda-pathfinder", "nvidia-cudnn-frontend",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It has none."""


def run(arguments: argparse.Namespace) -> int:
    chosen = {"precision": precision(), "convolution": convolution(), "cache": cache(settings.cache_dir)}
    rows = {**versions(), **devices(), **chosen, **switches()}
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"{name:<{width}}  {value}")
    return 0


def versions() -> dict[str, str]:
    """The version of Genesis, of Python, and of each package that Genesis computes with."""
    found = {NAME: genesis.__version__, "python": f"{platform.python_version()} on {platform.platform()}"}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def devices() -> dict[str, str]:
    """The devices of each type, or why there is none."""
    num_threads = os.environ.get("OMP_NUM_THREADS")
    limit = f", OMP_NUM_THREADS={num_threads}" if num_threads else ""
    found = {"cpu": f"{processor()}, {num_cores()} cores{limit}"}
    try:
        count = max(1, cuda.device_count())  # where there is none, asking for the first says why
        found["cuda"] = ", ".join([_device(cuda.get_device_properties(index)) for index in range(count)])
        found["cuda driver"] = driver_version()
    except (GenesisError, ImportError, RuntimeError) as error:
        found["cuda"] = f"not available: {str(error).removeprefix('cuda: ')}"
    return found


def _device(properties: DeviceProperties) -> str:
    architecture = f"sm_{properties.major}{properties.minor}"
    return f"{properties.name} ({architecture}, {properties.total_memory / 1e9:.1f} GB)"


def processor() -> str:
    """The model of the CPU, as well as the system knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def num_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def precision() -> str:
    """The float32 precision and its meaning."""
    meaning = {
        "highest": "full float32 accuracy",
        "high": "float32 operands may be rounded to TF32 (11 bits)",
        "medium": "float32 operands may be rounded to bfloat16 (8 bits)",
    }
    return f"{genesis.get_float32_precision()}: {meaning[genesis.get_float32_precision()]}"


def convolution() -> str:
    """The libraries that compute convolutions on CUDA, and the location of tuned plans."""
    try:
        return plans.describe_engine()
    except (GenesisError, ImportError, RuntimeError):  # devices() says why
        return "no CUDA device; genesis tune --device cpu tunes the processor"


def cache(folder: Path) -> str:
    """The cache folder, and what is in it."""
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    size = sum([path.stat().st_size for path in files])
    return f"{folder} ({len(files)} files, {size / 1e6:.1f} MB)"


def switches() -> dict[str, str]:
    """Each environment variable and its value."""
    values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    return {f"GENESIS_{name.upper()}": str(value) or "not set" for name, value in values.items()}
