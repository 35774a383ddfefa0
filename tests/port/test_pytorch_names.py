"""docs/pytorch-names.md says what there is."""

from __future__ import annotations

import pytest

from tests.port import pytorch_names


def test_the_page_is_that_of_this_tree() -> None:
    written = pytorch_names.PAGE.read_text(encoding="utf-8")
    if f"PyTorch {pytorch_names.version()} " not in written:
        pytest.skip(f"the page is of another PyTorch than {pytorch_names.version()}")
    assert written == pytorch_names.page(), "stale: python -m tests.port.pytorch_names writes it again"


@pytest.mark.parametrize(
    ("namespace", "there", "missing"),
    [
        ("torch", "relu", "vmap"),
        ("torch.Tensor", "relu_", "to_sparse"),
        ("torch.nn", "Linear", "Conv3d"),
        ("torch.nn.functional", "conv2d", "max_pool3d"),
        ("torch.jit", "is_scripting", "freeze"),
    ],
)
def test_names_are_found_and_missed(namespace: str, there: str, missing: str) -> None:
    found = pytorch_names.names_of(namespace)
    assert there in found.there
    assert missing in found.missing
