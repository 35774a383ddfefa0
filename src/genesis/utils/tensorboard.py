"""TensorBoard's SummaryWriter, which takes Genesis tensors: PyTorch's, with the package tensorboard."""

from __future__ import annotations

from genesis.data.tree import map_tree
from genesis.errors import describe
from genesis.interop import to_torch
from genesis.tensor import Tensor

try:
    from torch.utils.tensorboard import SummaryWriter as _TorchWriter
except ImportError as _error:
    raise ImportError(
        describe("genesis.utils.tensorboard", "tensorboard", "the package; `pip install tensorboard`", str(_error))
    ) from _error

_ADD = (
    "add_scalar", "add_scalars", "add_histogram", "add_image", "add_images", "add_video", "add_audio", "add_text",
    "add_embedding", "add_pr_curve", "add_mesh", "add_hparams", "add_tensor",
)  # fmt: skip


class SummaryWriter(_TorchWriter):
    """Write scalars, images, histograms and text for TensorBoard, as PyTorch's SummaryWriter.

    Args:
        log_dir: the folder of event files; runs/<time and host> if None.
        options: see torch.utils.tensorboard.SummaryWriter.
    Raises: NotImplementedError: add_graph, which traces PyTorch modules.
    """

    def add_graph(self, *args: object, **options: object) -> None:
        raise NotImplementedError("SummaryWriter.add_graph: only PyTorch modules can be traced; use genesis.export")


def _converting(name: str) -> object:
    theirs = getattr(_TorchWriter, name)

    def add(self: SummaryWriter, *args: object, **options: object) -> object:
        plain = {option: map_tree(_plain, value) for option, value in options.items()}
        return theirs(self, *[map_tree(_plain, arg) for arg in args], **plain)

    add.__name__, add.__doc__ = name, f"{name}, of Genesis tensors too. See torch.utils.tensorboard.SummaryWriter."
    return add


def _plain(value: object) -> object:
    return to_torch(value.detach().cpu()) if isinstance(value, Tensor) else value


for _name in _ADD:
    if hasattr(_TorchWriter, _name):
        setattr(SummaryWriter, _name, _converting(_name))
