"""Every model that torchvision has, against torchvision's own, where that is installed: keys, results, gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from genesis import models
from tests.models import agreement

INPUTS = dict.fromkeys(("resnet18", "resnet34", "resnet50", "resnet101"), (2, 3, 64, 64)) | {
    "vgg16_bn": (2, 3, 32, 32), "fcn_resnet50": (2, 3, 33, 40), "deeplabv3_resnet50": (2, 3, 33, 40),
}  # fmt: skip


@pytest.fixture(scope="module")
def torchvision_models() -> Any:
    try:
        import torchvision
    except (ImportError, RuntimeError) as error:  # its C++ part fits one build of torch only
        pytest.skip(f"torchvision is not there: {error}")
    return torchvision.models


@pytest.fixture(params=INPUTS)
def pair(request: pytest.FixtureRequest, torchvision_models: Any) -> tuple[torch.nn.Module, Any, torch.Tensor]:
    torch.manual_seed(0)
    name = request.param
    kwargs: dict[str, Any] = {"weights": None, "num_classes": 5}
    if hasattr(torchvision_models, name):
        constructor = getattr(torchvision_models, name)
    else:
        constructor = getattr(torchvision_models.segmentation, name)
        kwargs |= {"weights_backbone": None, "aux_loss": True}
    theirs, ours = constructor(**kwargs), getattr(models, name)(**kwargs)
    agreement.assert_equal_shapes(theirs, ours)
    agreement.share_weights(theirs, ours)
    return theirs, ours, torch.randn(INPUTS[name])


def test_like_torchvision(pair: tuple[torch.nn.Module, Any, torch.Tensor]) -> None:
    agreement.compare(*pair)


@pytest.mark.gpu
@torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
def test_like_torchvision_on_a_gpu(pair: tuple[torch.nn.Module, Any, torch.Tensor]) -> None:
    assert not torch.backends.cuda.matmul.allow_tf32  # PyTorch's default
    agreement.compare(*pair, device="cuda")
