"""Decompositions of matrices: the operands are copied to the host, where the CPU's LAPACK computes, and results back.

A call waits for the stream. Matrices of a few hundred rows are decomposed sooner there than the GPU could, as their
columns depend on each other; of larger ones the copies are a small part of the time.
"""

from __future__ import annotations

from genesis.backends.cuda.ops.storage.launch import from_cpu, to_cpu
from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.backends.dispatch import active


def cholesky(x: DeviceArray, upper: bool) -> tuple[DeviceArray, DeviceArray]:
    factor, info = _on_host("cholesky", x, upper)
    return factor, info


def eigh(x: DeviceArray, upper: bool) -> tuple[DeviceArray, DeviceArray]:
    values, vectors = _on_host("eigh", x, upper)
    return values, vectors


def lu(x: DeviceArray) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
    packed, pivots, info = _on_host("lu", x)
    return packed, pivots, info


def lu_order(pivots: DeviceArray, num_rows: int) -> DeviceArray:
    (order,) = _on_host("lu_order", pivots, num_rows)
    return order


def matrix_exp(x: DeviceArray) -> DeviceArray:
    (found,) = _on_host("matrix_exp", x)
    return found


def qr(x: DeviceArray, complete: bool) -> tuple[DeviceArray, DeviceArray]:
    q, r = _on_host("qr", x, complete)
    return q, r


def svd(x: DeviceArray, full_matrices: bool) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
    s, u, vh = _on_host("svd", x, full_matrices)
    return s, u, vh


def triangular_solve(a: DeviceArray, b: DeviceArray, upper: bool, unitriangular: bool) -> DeviceArray:
    (found,) = _on_host("triangular_solve", a, b, upper, unitriangular)
    return found


def _on_host(op: str, first: DeviceArray, *rest: object) -> tuple[DeviceArray, ...]:
    """The results of the CPU's function of this name."""
    host = active["cpu"]
    arguments = [
        host.from_cpu(to_cpu(each), each.dtype) if isinstance(each, DeviceArray) else each for each in (first, *rest)
    ]
    results = getattr(host, op)(*arguments)
    results = results if isinstance(results, tuple) else (results,)
    return tuple([from_cpu(host.to_cpu(each), host.dtype(each), first.device_index) for each in results])
