"""torch.backends: flags that scripts set. Those of speed have no effect; tf32 is Genesis' own precision."""

from __future__ import annotations

from genesis import precision


class _Backend:
    """A backend of PyTorch's that is not here: its flags are kept, and have no effect."""

    def __init__(self, **flags: object) -> None:
        self.__dict__.update(flags)

    def is_available(self) -> bool:
        """Say that it is not here."""
        return False

    is_built = is_available


class _Precision(_Backend):
    """Flags that allow tf32: Genesis has one precision of float32 for all that it computes."""

    @property
    def allow_tf32(self) -> bool:
        return precision.get_float32_precision() != "highest"

    @allow_tf32.setter
    def allow_tf32(self, allowed: bool) -> None:
        precision.set_float32_precision("high" if allowed else "highest")


class _CuDNN(_Precision):
    def is_available(self) -> bool:
        """Whether convolutions can run on a GPU."""
        from genesis import cuda

        return cuda.is_available()

    def version(self) -> None:
        """Say that PyTorch's is not used."""


cudnn = _CuDNN(enabled=True, benchmark=False, deterministic=False, benchmark_limit=10)
cuda = _Backend(matmul=_Precision(allow_fp16_reduced_precision_reduction=True))
mkldnn = _Backend(enabled=False)
mps = _Backend()
mkl = _Backend()
openmp = _Backend()
xnnpack = _Backend(enabled=False)
quantized = _Backend(engine="none", supported_engines=["none"])
