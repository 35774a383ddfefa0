"""Redirected code sees Genesis as its torch; everything else in the process keeps PyTorch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

import genesis
from genesis.errors import MissingNameError
from genesis.port import redirected

Load = Callable[[str], ModuleType]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.syspath_prepend(tmp_path)

    def load(source: str) -> ModuleType:
        (tmp_path / "their_net.py").write_text(source, encoding="utf-8")
        importlib.invalidate_caches()
        with redirected("their_net"):
            return importlib.import_module("their_net")

    return load


def test_every_form_of_import_gives_genesis(load: Load) -> None:
    module = load(
        "import torch, numpy\nimport torch.nn as nn\nimport torch.nn.functional as F\nimport torch.optim.lr_scheduler\n"
        "from torch import Tensor, optim\nfrom torch.nn.modules.conv import Conv2d\nfrom torch.nn.init import *\n"
        "def late():\n    from torch.nn import Linear\n    return Linear\n"
    )
    assert module.nn.Linear is genesis.nn.Linear
    assert module.late() is genesis.nn.Linear
    assert module.Tensor is genesis.Tensor
    assert module.Conv2d is genesis.nn.Conv2d
    assert module.F.relu is genesis.nn.functional.relu
    assert module.kaiming_normal_ is genesis.nn.init.kaiming_normal_
    assert module.torch.optim.lr_scheduler.StepLR is genesis.optim.lr_scheduler.StepLR
    assert module.torch.torch is module.torch
    assert module.torch.float is genesis.float32
    assert module.torch.__version__ == torch.__version__
    assert module.numpy is sys.modules["numpy"]


def test_imports_by_functions_give_genesis(load: Load) -> None:
    module = load(
        "import importlib, importlib.util\nfrom importlib import import_module\n"
        "found = [import_module('torch.nn').Linear, importlib.import_module('torch').nn.Linear,\n"
        "         __import__('torch').nn.Linear, importlib.import_module('.nn', 'torch').Linear]\n"
        "others = importlib.import_module('numpy'), importlib.util.find_spec('numpy').name, importlib.machinery\n"
    )
    assert module.found == [genesis.nn.Linear] * 4
    assert module.others == (sys.modules["numpy"], "numpy", importlib.machinery)
    assert importlib.import_module("torch") is torch
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'torch\.nothing'"):
        load("from importlib import import_module\nimport_module('torch.nothing.more')\n")
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'torch\.relu'"):
        load("from importlib import import_module\nimport_module('torch.relu')\n")


def test_stars_give_what_there_is(load: Load) -> None:
    module = load("from torch import *\nfrom torch.nn import *\nfrom torch.utils.checkpoint import *\n")
    assert module.Linear is genesis.nn.Linear
    assert module.ones is genesis.ones
    assert module.float is genesis.float32
    assert module.checkpoint is genesis.utils.checkpoint.checkpoint
    assert not hasattr(module, "vmap")


def test_everything_else_keeps_pytorch(load: Load) -> None:
    before = dict(sys.modules)
    load("import torch\n")
    assert sys.modules["torch"] is torch
    assert "their_net" not in sys.modules
    assert set(sys.modules) >= set(before)


def test_the_block_finds_its_modules_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "twice.py").write_text("import torch\n", encoding="utf-8")
    theirs = importlib.import_module("twice")
    block = redirected("twice")
    with block:
        ours = importlib.import_module("twice")
    assert sys.modules["twice"] is theirs
    with block:
        assert importlib.import_module("twice") is ours
    assert theirs.torch is torch
    assert ours.torch is not torch
    del sys.modules["twice"]


def test_scripting_and_tracing_are_off(load: Load) -> None:
    module = load(
        "import torch\nfrom torch.jit import Final\n@torch.jit.script\ndef f(x):\n    return x\n"
        "@torch.jit.ignore\ndef g(x):\n    return x\n@torch.jit.ignore(drop=True)\ndef h(x):\n    return x\n"
        "torch.fx.wrap('f')\n"
        "off = (torch.jit.is_scripting(), torch.jit.is_tracing(), torch.compiler.is_compiling(),\n"
        "       torch.onnx.is_in_onnx_export(), torch.distributed.is_initialized())\n"
    )
    assert module.off == (False,) * 5
    assert (module.f(1), module.g(2), module.h(3)) == (1, 2, 3)


def test_a_missing_name_raises_where_it_is_used(load: Load, tmp_path: Path) -> None:
    module = load(
        "import torch\nfrom torch import vmap\nfrom torch.nn import Module\n"
        "class Net(torch.nn.Conv3d):\n    pass\n"
        "def annotated(x: torch.sparse_coo | None, y: vmap) -> None:\n    return isinstance(x, torch.nn.Conv3d)\n"
        "def use():\n    vmap(1)\n"
        "def use_attribute():\n    torch.sparse_coo_tensor(1)\n"
        "def transform():\n    torch.func.grad(1)\n"
    )
    assert module.annotated(1, 2) is False
    place = f"{tmp_path / 'their_net.py'}"
    advice = "Genesis has no function transforms; write a batch dimension or a loop"
    for call, message in (
        (module.use, f"{place}:9: Genesis has no torch.vmap; {advice}"),
        (module.use_attribute, f"{place}:11: Genesis has no torch.sparse_coo_tensor; Genesis has no sparse"),
        (module.transform, f"{place}:13: Genesis has no torch.func.grad; Genesis has no function transforms"),
        (module.Net, "Genesis has no torch.nn.Conv3d; Genesis has no three-dimensional layers yet"),
    ):
        with pytest.raises(MissingNameError) as caught:
            call()
        assert message in str(caught.value)
        assert isinstance(caught.value, AttributeError)


def test_code_that_asks_hears_that_a_name_is_missing(load: Load) -> None:
    module = load(
        "import torch\n"
        "answers = [hasattr(torch, 'vmap'), getattr(torch, 'vmap', None), hasattr(torch.nn, 'Conv3d')]\n"
        "try:\n    from torch import vmap\nexcept ImportError:\n    answers.append(None)\n"
        "try:\n    torch.vmap\nexcept AttributeError:\n    answers.append(None)\n"
        "try:\n    import torch.nothing_of_the_kind\nexcept ImportError as error:\n    answers.append(error.name)\n"
        "answers.append(hasattr(torch, 'fuse'))\n"  # which Genesis has, and PyTorch has not
    )
    assert module.answers == [False, None, False, None, None, "torch.nothing_of_the_kind", False]


def test_what_pytorch_lacks_too_is_said_at_once(load: Load) -> None:
    with pytest.raises(ImportError, match=r"cannot import name 'nothing' from 'torch\.nn'"):
        load("from torch.nn import nothing\n")
    with pytest.raises(AttributeError, match=r"module 'torch' has no attribute 'nothing', in PyTorch neither"):
        load("import torch\ntorch.nothing\n")


def test_flags_of_backends_may_be_set(load: Load) -> None:
    before = genesis.get_float32_precision()
    module = load(
        "import torch\nimport torch.backends.cudnn as cudnn\ncudnn.benchmark = True\n"
        "torch.backends.cuda.matmul.allow_tf32 = True\nasked = torch.backends.mps.is_available()\n"
    )
    assert genesis.get_float32_precision() == "high"
    genesis.set_float32_precision(before)
    assert module.torch.backends.cudnn.benchmark is True
    assert module.asked is False


def test_hub_loads_local_weights(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    torch.save({"weight": torch.ones(2)}, folder / "net.pth")
    hub = load("from torch import hub\n").hub
    state = hub.load_state_dict_from_url("https://example.org/net.pth", progress=False)
    assert state["weight"].tolist() == [1.0, 1.0]
    assert isinstance(state["weight"], genesis.Tensor)
    with pytest.raises(ValueError, match=r"other\.pth: not there, and Genesis downloads nothing; download https://e"):
        hub.load_state_dict_from_url("https://example.org/other.pth")


@pytest.mark.parametrize("package", ["torch", "genesis", "timm.models", ""])
def test_packages_that_cannot_be_redirected(package: str) -> None:
    with pytest.raises(ValueError, match="redirected: argument 'packages': expected top-level packages that use torch"):
        redirected(package)
