"""What bench_ops.py measures: each case makes one call for PyTorch and one for Genesis on the same data.

A case says how many bytes it must move and how many operations it must do, at least: each input read once, each output
written once. Families come in the order of their weight, so that a run that is out of time has the heavy ones.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as TF

import genesis
import genesis.nn.functional as F

Calls = dict[str, Callable[[], Any]]  # "torch", "genesis"
MEGABYTES = (16, 64, 256)
COLUMNS, VOCABULARY, CHANNELS, SIDE = 4096, 8192, 256, 32
FLOATS = (torch.float32, torch.bfloat16)
HALVES = (torch.bfloat16, torch.float16)


class Case(NamedTuple):
    family: str
    name: str
    dtype: torch.dtype  # of the data
    num_bytes: float
    num_operations: float
    make: Callable[[Setting], Calls]


class Setting:
    """Where the data lie: one memory for both sides on a GPU; tiny copies on the CPU and the simulated device."""

    def __init__(self, tiny: bool) -> None:
        self.tiny = tiny
        self.device = "cpu" if tiny else "cuda"

    def both(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        ours = genesis.from_torch(tensor)
        return tensor, ours.to("cuda") if self.tiny else ours

    def normal(self, *shape: int, dtype: torch.dtype) -> tuple[torch.Tensor, Any]:
        return self.both(torch.randn(shape, device=self.device, dtype=dtype))

    def images(self, *shape: int, dtype: torch.dtype) -> tuple[torch.Tensor, Any]:
        """NHWC in memory."""
        whole = torch.randn(shape, device=self.device, dtype=dtype)
        return self.both(whole.contiguous(memory_format=torch.channels_last))

    def rows(self, megabytes: int, dtype: torch.dtype, columns: int) -> tuple[int, int]:
        return (6, 40) if self.tiny else (megabytes * 2**20 // (columns * dtype.itemsize), columns)


def forward(ours: Any, theirs: Any, *operands: tuple[torch.Tensor, Any]) -> Calls:
    their_operands, our_operands = zip(*operands, strict=True)
    return {"torch": lambda: theirs(*their_operands), "genesis": lambda: ours(*our_operands)}


def backward(setting: Setting, ours: Any, theirs: Any, *operands: tuple[torch.Tensor, Any]) -> Calls:
    """The gradients of all operands, of a result that is already there."""
    their_operands, our_operands = ([side.requires_grad_() for side in sides] for sides in zip(*operands, strict=True))
    their_result, our_result = theirs(*their_operands), ours(*our_operands)
    their_seed, our_seed = setting.both(torch.randn_like(their_result))
    return {
        "torch": lambda: torch.autograd.grad(their_result, their_operands, their_seed, retain_graph=True),
        "genesis": lambda: genesis.autograd.grad(our_result, our_operands, our_seed, retain_graph=True),
    }


def cases(megabytes: tuple[int, ...] = MEGABYTES) -> Iterator[Case]:
    """All cases; megabytes: the sizes of those that are bound by memory."""
    yield from elementwise(megabytes)
    yield from reductions(megabytes)
    yield from rowwise(megabytes)
    yield from batch_norms(megabytes)
    yield from image_ops()
    yield from products()
    yield from attentions()
    yield from convolutions()


# --- bound by memory --------------------------------------------------------------------------------------------------
ELEMENTWISE: dict[str, tuple[Any, Any, int]] = {  # ours, PyTorch's, number of operands
    "add": (genesis.add, torch.add, 2),
    "mul": (genesis.mul, torch.mul, 2),
    "relu": (F.relu, TF.relu, 1),
    "gelu": (F.gelu, TF.gelu, 1),
    "exp": (genesis.exp, torch.exp, 1),
}
REDUCTIONS: dict[str, tuple[Any, Any]] = {
    "sum, all": (lambda x: x.sum(), lambda x: x.sum()),
    "sum, rows": (lambda x: x.sum(1), lambda x: x.sum(1)),
    "sum, columns": (lambda x: x.sum(0), lambda x: x.sum(0)),
    "amax, rows": (lambda x: x.amax(1), lambda x: x.amax(1)),
    "argmax, rows": (lambda x: x.argmax(1), lambda x: x.argmax(1)),
}


def sized(megabytes: tuple[int, ...]) -> Iterator[tuple[int, torch.dtype, str, float]]:
    """(megabytes, dtype, how it is called, bytes)."""
    for size in megabytes:
        for dtype in FLOATS:
            yield size, dtype, f"{size} MB {name_of(dtype)}", size * 2**20


def elementwise(megabytes: tuple[int, ...]) -> Iterator[Case]:
    for size, dtype, label, num_bytes in sized(megabytes):
        for name, (ours, theirs, count) in ELEMENTWISE.items():

            def make(
                setting: Setting, size: int = size, dtype: torch.dtype = dtype, ours: Any = ours, theirs: Any = theirs,
                count: int = count,
            ) -> Calls:  # fmt: skip
                shape = setting.rows(size, dtype, COLUMNS)
                return forward(ours, theirs, *(setting.normal(*shape, dtype=dtype) for _ in range(count)))

            yield Case("element-wise", f"{name} {label}", dtype, (count + 1) * num_bytes, 0, make)

        def make_backward(setting: Setting, size: int = size, dtype: torch.dtype = dtype) -> Calls:
            shape = setting.rows(size, dtype, COLUMNS)
            return backward(setting, F.gelu, TF.gelu, setting.normal(*shape, dtype=dtype))

        yield Case("element-wise", f"gelu backward {label}", dtype, 3 * num_bytes, 0, make_backward)

        def make_cast(setting: Setting, size: int = size, dtype: torch.dtype = dtype) -> Calls:
            to_bfloat16 = dtype is torch.float32
            operand = setting.normal(*setting.rows(size, dtype, COLUMNS), dtype=dtype)
            if to_bfloat16:
                return forward(lambda x: x.to(genesis.bfloat16), lambda x: x.to(torch.bfloat16), operand)
            return forward(lambda x: x.to(genesis.float32), lambda x: x.to(torch.float32), operand)

        factor = 1.5 if dtype is torch.float32 else 3
        yield Case("element-wise", f"cast {label}", dtype, factor * num_bytes, 0, make_cast)


def reductions(megabytes: tuple[int, ...]) -> Iterator[Case]:
    for size, dtype, label, num_bytes in sized(megabytes):
        for name, (ours, theirs) in REDUCTIONS.items():

            def make(
                setting: Setting, size: int = size, dtype: torch.dtype = dtype, ours: Any = ours, theirs: Any = theirs
            ) -> Calls:
                x = torch.randn(setting.rows(size, dtype, COLUMNS), device=setting.device, dtype=dtype)
                extremes = torch.randint(x.shape[1], (x.shape[0], 1), device=setting.device)
                x.scatter_(1, extremes, 20.0)  # no two equal ones: which of them argmax gives is not agreed on
                return forward(ours, theirs, setting.both(x))

            yield Case("reductions", f"{name} {label}", dtype, num_bytes, 0, make)


def rowwise(megabytes: tuple[int, ...]) -> Iterator[Case]:
    """What goes over each row: softmax, norms, cross entropy; forward and backward."""
    for size, dtype, label, num_bytes in sized(megabytes):

        def operands(
            setting: Setting, columns: int = COLUMNS, num_parameters: int = 0, size: int = size,
            dtype: torch.dtype = dtype,
        ) -> list[tuple[torch.Tensor, Any]]:  # fmt: skip
            shape = setting.rows(size, dtype, columns)
            parameters = [setting.normal(shape[1], dtype=dtype) for _ in range(num_parameters)]
            return [setting.normal(*shape, dtype=dtype), *parameters]

        def entropy(setting: Setting, direction: Any, operands: Any = operands) -> Calls:
            logits = operands(setting, VOCABULARY)[0]
            num_rows, num_classes = logits[0].shape
            target, our_target = setting.both(torch.randint(num_classes, (num_rows,), device=setting.device))
            return direction(lambda x: F.cross_entropy(x, our_target), lambda x: TF.cross_entropy(x, target), logits)

        for name, ours, theirs in (("softmax", F.softmax, TF.softmax), ("log_softmax", F.log_softmax, TF.log_softmax)):

            def make(setting: Setting, ours: Any = ours, theirs: Any = theirs, operands: Any = operands) -> Calls:
                return forward(lambda x: ours(x, 1), lambda x: theirs(x, 1), *operands(setting))

            yield Case("softmax", f"{name} {label}", dtype, 2 * num_bytes, 0, make)

        for direction, factor in (("forward", 2), ("backward", 3)):
            for name, norm, num_parameters in (("layer_norm", _layer_norm, 2), ("rms_norm", _rms_norm, 1)):

                def make_norm(
                    setting: Setting, direction: str = direction, norm: Any = norm,
                    num_parameters: int = num_parameters, operands: Any = operands,
                ) -> Calls:  # fmt: skip
                    call = forward if direction == "forward" else functools.partial(backward, setting)
                    given = operands(setting, COLUMNS, num_parameters)
                    return call(functools.partial(norm, F), functools.partial(norm, TF), *given)

                yield Case("norms", f"{name} {direction} {label}", dtype, factor * num_bytes, 0, make_norm)

            def make_entropy(setting: Setting, direction: str = direction, entropy: Any = entropy) -> Calls:
                return entropy(setting, forward if direction == "forward" else functools.partial(backward, setting))

            name = f"cross_entropy {direction} {label}"
            yield Case("cross entropy", name, dtype, (factor - 1) * num_bytes, 0, make_entropy)


def _layer_norm(library: Any, x: Any, weight: Any, bias: Any) -> Any:
    return library.layer_norm(x, (x.shape[-1],), weight, bias, 1e-5)


def _rms_norm(library: Any, x: Any, weight: Any) -> Any:
    return library.rms_norm(x, (x.shape[-1],), weight, 1e-6)


def batch_norms(megabytes: tuple[int, ...]) -> Iterator[Case]:
    for size, dtype, label, num_bytes in sized(megabytes):
        for direction, factor in (("forward", 2), ("backward", 3)):

            def make(
                setting: Setting, size: int = size, dtype: torch.dtype = dtype, direction: str = direction
            ) -> Calls:
                shape = (2, 8, 4, 4) if setting.tiny else (
                    size * 2**20 // (dtype.itemsize * CHANNELS * SIDE**2), CHANNELS, SIDE, SIDE
                )  # fmt: skip
                x = setting.images(*shape, dtype=dtype)
                weight, bias = (setting.normal(shape[1], dtype=torch.float32) for _ in range(2))
                ones = torch.ones(2, shape[1], device=setting.device)
                (mean, our_mean), (variance, our_variance) = setting.both(ones[0] - 1), setting.both(ones[1])

                def ours(x: Any, weight: Any, bias: Any) -> Any:
                    return F.batch_norm(x, our_mean, our_variance, weight, bias, training=True)

                def theirs(x: Any, weight: Any, bias: Any) -> Any:
                    return TF.batch_norm(x, mean, variance, weight, bias, training=True)

                call = forward if direction == "forward" else functools.partial(backward, setting)
                return call(ours, theirs, x, weight, bias)

            yield Case("batch norm", f"batch_norm NHWC {direction} {label}", dtype, factor * num_bytes, 0, make)


class ImageOp(NamedTuple):
    """What is computed of so many images of one shape, NHWC in memory, and how large its result is."""

    family: str
    call: Callable[..., Any]  # of F or PyTorch's functional, and the images
    shape: tuple[int, int, int, int]
    result: tuple[int, int, int, int]
    count: int = 1
    tiny: tuple[int, int, int, int] = (2, 6, 8, 8)


def _cat(library: Any, *x: Any) -> Any:
    return (genesis if library is F else torch).cat(x, 1)


IMAGE_OPS: dict[str, ImageOp] = {
    "bilinear ×8, 21 channels": ImageOp(
        "interpolation",
        lambda library, x: library.interpolate(x, scale_factor=8, mode="bilinear", align_corners=False),
        (8, 21, 64, 64), (8, 21, 512, 512),
    ),
    "bilinear ×2, 256 channels": ImageOp(
        "interpolation",
        lambda library, x: library.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True),
        (8, 256, 64, 64), (8, 256, 128, 128),
    ),
    "nearest ×2, 256 channels": ImageOp(
        "interpolation", lambda library, x: library.interpolate(x, scale_factor=2, mode="nearest"),
        (8, 256, 64, 64), (8, 256, 128, 128),
    ),
    "max 3×3, stride 2": ImageOp(
        "pooling", lambda library, x: library.max_pool2d(x, 3, 2, 1), (64, 64, 112, 112), (64, 64, 56, 56)
    ),
    "max 2×2": ImageOp("pooling", lambda library, x: library.max_pool2d(x, 2), (64, 128, 112, 112), (64, 128, 56, 56)),
    "avg 2×2": ImageOp("pooling", lambda library, x: library.avg_pool2d(x, 2), (64, 256, 56, 56), (64, 256, 28, 28)),
    "adaptive avg to 1×1": ImageOp(
        "pooling", lambda library, x: library.adaptive_avg_pool2d(x, 1), (128, 2048, 7, 7), (128, 2048, 1, 1)
    ),
    "adaptive avg to 6×6": ImageOp(
        "pooling", lambda library, x: library.adaptive_avg_pool2d(x, 6), (8, 1024, 64, 64), (8, 1024, 6, 6)
    ),
    "cat of 5 × 256 channels": ImageOp("cat", _cat, (8, 256, 64, 64), (8, 1280, 64, 64), 5),
    "cat of 2 × 64 channels": ImageOp("cat", _cat, (4, 64, 256, 256), (4, 128, 256, 256), 2),
}  # fmt: skip


def image_ops() -> Iterator[Case]:
    """Backward in float32 alone: in 16 bits PyTorch adds up an interpolation's gradients in the dtype of the result.

    Not of cat: its gradients are views, so there is nothing on the device to time.
    """
    for name, op in IMAGE_OPS.items():
        num_elements = op.count * math.prod(op.shape) + math.prod(op.result)
        directions = [("forward", dtype) for dtype in FLOATS]
        if op.call is not _cat:
            directions.append(("backward", torch.float32))
        for direction, dtype in directions:

            def make(
                setting: Setting, op: ImageOp = op, direction: str = direction, dtype: torch.dtype = dtype
            ) -> Calls:
                operands = [
                    setting.images(*(op.tiny if setting.tiny else op.shape), dtype=dtype) for _ in range(op.count)
                ]
                call = forward if direction == "forward" else functools.partial(backward, setting)
                return call(functools.partial(op.call, F), functools.partial(op.call, TF), *operands)

            label = f"{name} {direction} {name_of(dtype)}"
            yield Case(op.family, label, dtype, num_elements * dtype.itemsize, 0, make)


# --- bound by arithmetic ----------------------------------------------------------------------------------------------
PRODUCTS: dict[str, tuple[tuple[int, int, int, int], bool, bool]] = {  # (batch, M, N, K), is x, is y transposed
    "1024³": ((1, 1024, 1024, 1024), False, False),
    "2048³": ((1, 2048, 2048, 2048), False, False),
    "4096³": ((1, 4096, 4096, 4096), False, False),
    "4096³, y transposed": ((1, 4096, 4096, 4096), False, True),
    "4096³, x transposed": ((1, 4096, 4096, 4096), True, False),
    "8192×1024×4096, y transposed": ((1, 8192, 1024, 4096), False, True),
    "200×512×784, y transposed": ((1, 200, 512, 784), False, True),
    "64 of 512³": ((64, 512, 512, 512), False, False),
    "64 of 1024×1024×64, y transposed": ((64, 1024, 1024, 64), False, True),
}


def products() -> Iterator[Case]:
    for dtype in (torch.float32, *HALVES):
        for name, (sizes, x_transposed, y_transposed) in PRODUCTS.items():
            batch, m, n, k = sizes

            def make(
                setting: Setting, sizes: tuple[int, ...] = sizes, dtype: torch.dtype = dtype,
                x_transposed: bool = x_transposed, y_transposed: bool = y_transposed,
            ) -> Calls:  # fmt: skip
                batch, m, n, k = (min(sizes[0], 2), 20, 24, 36) if setting.tiny else sizes
                lead = (batch,) if batch > 1 else ()
                x = setting.normal(*lead, *((k, m) if x_transposed else (m, k)), dtype=dtype)
                y = setting.normal(*lead, *((n, k) if y_transposed else (k, n)), dtype=dtype)
                x = tuple(side.mT for side in x) if x_transposed else x
                y = tuple(side.mT for side in y) if y_transposed else y
                return forward(genesis.matmul, torch.matmul, x, y)

            num_bytes = batch * (m * k + k * n + m * n) * dtype.itemsize
            yield Case("matmul", f"{name} {name_of(dtype)}", dtype, num_bytes, 2 * batch * m * n * k, make)


def attentions() -> Iterator[Case]:
    batch, heads, length = 4, 16, 4096
    for direction in ("forward", "backward"):
        for size in (64, 128):
            for causal in (False, True):

                def make(
                    setting: Setting, size: int = size, causal: bool = causal, direction: str = direction
                ) -> Calls:
                    shape = (1, 2, 24, size) if setting.tiny else (batch, heads, length, size)
                    operands = [setting.normal(*shape, dtype=torch.bfloat16) for _ in range(3)]
                    ours = functools.partial(F.scaled_dot_product_attention, is_causal=causal)
                    theirs = functools.partial(TF.scaled_dot_product_attention, is_causal=causal)
                    call = forward if direction == "forward" else functools.partial(backward, setting)
                    return call(ours, theirs, *operands)

                pairs = batch * heads * length**2 * (0.5 if causal else 1)
                operations = pairs * size * (4 if direction == "forward" else 10)
                num_bytes = batch * heads * length * size * 2 * (4 if direction == "forward" else 8)
                name = f"attention {direction} head {size}{' causal' if causal else ''} bfloat16"
                yield Case("attention", name, torch.bfloat16, num_bytes, operations, make)


CONVOLUTIONS: dict[str, tuple[int, ...]] = {  # N, C, H = W, K, kernel, stride, padding
    "seed": (32, 512, 7, 512, 3, 1, 1),
    "stem": (64, 3, 224, 64, 7, 2, 3),
    "1×1a": (64, 64, 56, 256, 1, 1, 0),
    "3×3a": (64, 64, 56, 64, 3, 1, 1),
    "3×3b": (64, 128, 28, 128, 3, 1, 1),
    "3×3c": (64, 256, 14, 256, 3, 1, 1),
    "1×1c": (64, 1024, 14, 256, 1, 1, 0),
    "3×3s2": (64, 256, 28, 256, 3, 2, 1),
    "vgg": (64, 256, 56, 256, 3, 1, 1),
    "unet": (4, 64, 512, 64, 3, 1, 1),
}


def convolutions() -> Iterator[Case]:
    """For information: the engine of fast convolutions is a subject of its own."""
    for dtype in (torch.bfloat16, torch.float32):
        for name, sizes in CONVOLUTIONS.items():
            batch, channels, side, filters, kernel, stride, padding = sizes
            out_side = (side + 2 * padding - kernel) // stride + 1
            operations = 2 * batch * out_side**2 * filters * channels * kernel**2
            elements = batch * (channels * side**2 + filters * out_side**2) + filters * channels * kernel**2
            for direction in ("forward", "input grad", "weight grad"):
                make = functools.partial(_convolution, sizes, dtype, direction)
                label = f"conv {name} {direction} {name_of(dtype)}"
                yield Case("convolution", label, dtype, elements * dtype.itemsize, operations, make)


def _convolution(sizes: tuple[int, ...], dtype: torch.dtype, direction: str, setting: Setting) -> Calls:
    batch, channels, side, filters, kernel, stride, padding = sizes
    if setting.tiny:
        batch, channels, side, filters = 2, min(channels, 8), 9, 8
    x = setting.images(batch, channels, side, side, dtype=dtype)
    weight = setting.images(filters, channels, kernel, kernel, dtype=dtype)
    if direction == "forward":

        def ours(x: Any, weight: Any) -> Any:
            return F.conv2d(x, weight, stride=stride, padding=padding)

        def theirs(x: Any, weight: Any) -> Any:
            return TF.conv2d(x, weight, stride=stride, padding=padding)

        return forward(ours, theirs, x, weight)
    if direction == "input grad":
        return backward(
            setting,
            lambda x: F.conv2d(x, weight[1], stride=stride, padding=padding),
            lambda x: TF.conv2d(x, weight[0], stride=stride, padding=padding),
            x,
        )
    return backward(
        setting,
        lambda weight: F.conv2d(x[1], weight, stride=stride, padding=padding),
        lambda weight: TF.conv2d(x[0], weight, stride=stride, padding=padding),
        weight,
    )


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
