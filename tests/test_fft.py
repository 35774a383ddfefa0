"""Fourier layers of people's networks, and complex tensors where PyTorch's op database has no samples."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import genesis
from genesis import nn
from genesis.errors import DTypeError, GraphError, ShapeError
from genesis.settings import override

# --- networks ---------------------------------------------------------------------------------------------------------


def spectral_convolution(lib: Any, x: Any, weight: Any) -> Any:
    """The layer of a Fourier neural operator: the low frequencies, each by a complex matrix of its own."""
    spectrum = lib.fft.rfft2(x)
    out = lib.zeros(x.shape[0], weight.shape[1], *spectrum.shape[-2:], dtype=lib.cfloat)
    rows, columns = weight.shape[2:]
    out[:, :, :rows, :columns] = lib.einsum("bixy,ioxy->boxy", spectrum[:, :, :rows, :columns], weight)
    return lib.fft.irfft2(out, s=x.shape[-2:])


def global_filter(lib: Any, x: Any, weight: Any) -> Any:
    """GFNet's: a learned filter, stored as pairs of real numbers."""
    filtered = lib.fft.rfft2(x, norm="ortho") * lib.view_as_complex(lib.stack([weight.real, weight.imag], -1))
    return lib.fft.irfft2(filtered, s=(4, 6), norm="ortho")


def mixing(lib: Any, x: Any, weight: Any) -> Any:
    """FNet's: the real part of a transform over tokens and features."""
    return lib.fft.fft(lib.fft.fft(x, dim=-1), dim=-2).real * weight.abs()


def rotary(lib: Any, x: Any, weight: Any) -> Any:
    """LLaMA's rotary embedding by complex numbers."""
    angles = lib.polar(lib.ones(4, 3), lib.arange(12.0).reshape(4, 3))
    pairs = lib.view_as_complex(x.reshape(*x.shape[:-1], 3, 2).contiguous())
    return lib.view_as_real(pairs * angles).flatten(-2) * weight.angle()


def spectral_loss(lib: Any, x: Any, weight: Any) -> Any:
    spectrum = lib.stft(x.flatten(0, -2), 4, 2, return_complex=True)
    return lib.log(spectrum.abs() + 1).mean() + (spectrum - 1j).abs().pow(2).sum() + weight.abs().sum()


NETWORKS: dict[Callable[..., Any], tuple[int, ...]] = {
    spectral_convolution: (3, 5, 2, 2), global_filter: (4, 4), mixing: (4, 6), rotary: (4, 6), spectral_loss: (2,),
}  # fmt: skip


@pytest.mark.parametrize("network", NETWORKS)
def test_networks_are_pytorchs(network: Callable[..., Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(2, 3, 4, 6, generator=generator)
    weights = torch.randn(*NETWORKS[network], generator=generator, dtype=torch.complex64)
    x, weight = (each.clone().requires_grad_() for each in (values, weights))
    expected = network(torch, x, weight)
    expected.square().sum().backward()
    ours, our_weight = (genesis.from_torch(each.clone()).requires_grad_() for each in (values, weights))
    found = network(genesis, ours, our_weight)
    found.square().sum().backward()
    pairs = [(found, expected), (ours.grad, x.grad), (our_weight.grad, weight.grad)]
    for mine, theirs in pairs:
        torch.testing.assert_close(mine.detach().to_torch(), theirs.detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam"])
def test_optimizers_step_the_parts_of_complex_parameters(name: str) -> None:
    start = torch.randn(3, 4, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    x, ours = start.clone().requires_grad_(), nn.Parameter(genesis.from_torch(start.clone()))
    theirs, optimizer = getattr(torch.optim, name)([x], lr=0.05), getattr(genesis.optim, name)([ours], lr=0.05)
    for step in range(4):
        for parameter, each in ((x, theirs), (ours, optimizer)):
            each.zero_grad()
            (parameter * (2 - 1j)).abs().pow(2).sum().backward()
            each.step()
        if step == 1:
            optimizer = getattr(genesis.optim, name)([ours], lr=0.05)
            optimizer.load_state_dict(theirs.state_dict())  # whose entries are complex
    torch.testing.assert_close(ours.detach().to_torch(), x.detach(), rtol=1e-5, atol=1e-5)


def test_optimizers_that_refuse_complex_parameters_say_so() -> None:
    with pytest.raises(DTypeError, match=r"LBFGS: argument 'params\[0\]': expected a floating dtype, got .*complex64"):
        genesis.optim.LBFGS([genesis.zeros(2, dtype=genesis.cfloat).requires_grad_()])


def test_initialization_draws_pytorchs_complex_numbers() -> None:
    drawn = []
    for lib in (genesis, torch):
        lib.manual_seed(1)  # of one generator
        one, other = lib.empty(5, 4, dtype=lib.cfloat), lib.empty(2, dtype=lib.cfloat)
        lib.nn.init.xavier_normal_(one)
        lib.nn.init.normal_(other, 0.5, 2.0)
        drawn.append([one, other, lib.randn(3, dtype=lib.cdouble)])
    for ours, theirs in zip(*drawn, strict=True):
        torch.testing.assert_close(ours.to_torch(), theirs)
    with pytest.raises(DTypeError, match=r"uniform_: argument 'tensor': expected a floating dtype, got .*complex64"):
        nn.init.xavier_uniform_(genesis.empty(5, 4, dtype=genesis.cfloat))


# --- gradients --------------------------------------------------------------------------------------------------------

SECOND_ORDER: dict[str, Callable[[Any, Any], Any]] = {
    "product": lambda lib, z: (z * z * z.conj()).abs().sum(),
    "transform": lambda lib, z: (lib.fft.fft(z) * z).abs().pow(2).sum(),
    "inverse of half": lambda lib, z: lib.fft.irfft(z, n=5).pow(3).sum(),
    "of real": lambda lib, z: (lib.fft.rfft(z.real * z.imag) ** 2).abs().sum(),
    "functions": lambda lib, z: (z.exp() / (z + 3)).sin().tanh().angle().sum(),
    "matrices": lambda lib, z: (z.reshape(2, 2) @ z.reshape(2, 2).mH @ z.reshape(2, 2)).abs().sum(),
    "parts": lambda lib, z: lib.view_as_real(lib.complex(z.real**2, z.imag)).prod(-1).pow(2).sum(),
}


@pytest.mark.parametrize("name", SECOND_ORDER)
def test_gradients_of_gradients(name: str) -> None:
    values = torch.tensor([1 + 2j, -0.5 + 1j, 2 - 1j, 0.3 + 0.2j], dtype=torch.complex128)
    found = []
    for lib, z in ((torch, values.clone()), (genesis, genesis.from_torch(values.clone()))):
        z.requires_grad_()
        (grad,) = lib.autograd.grad(SECOND_ORDER[name](lib, z), z, create_graph=True)
        (second,) = lib.autograd.grad((grad * (1 + 2j)).real.pow(2).sum(), z)
        found += [grad, second]
    for theirs, mine in zip(found[:2], found[2:], strict=True):
        np.testing.assert_allclose(mine.detach().numpy(), theirs.detach().numpy(), rtol=1e-10, atol=1e-10)


def test_gradients_that_are_not_there_are_refused() -> None:
    z = genesis.tensor([1 + 2j, 3], requires_grad=True)
    with pytest.raises(NotImplementedError, match=r"LogSumExp has no gradient over complex tensors; compute with real"):
        z.logsumexp(0)
    with pytest.raises(GraphError, match=r"can be left out only for a real number, here genesis.complex64"):
        (z * z).sum().backward()
    with pytest.raises(GraphError, match="shows complex numbers as real ones"):
        (z * 1).real.add_(1)
    view = (w := z * 1).real
    w.mul_(2)
    with pytest.raises(GraphError, match="shows complex numbers as real ones"):
        view.sum().backward()


def test_a_real_operand_has_a_real_gradient() -> None:
    x, z = genesis.tensor([1.0, 2.0], requires_grad=True), genesis.tensor([1 + 2j, 3 - 1j], requires_grad=True)
    (x * z).abs().pow(2).sum().backward()
    assert x.grad.dtype is genesis.float32
    torch.testing.assert_close(x.grad.to_torch(), torch.tensor([10.0, 40.0]))
    assert z.grad.dtype is genesis.complex64


# --- tensors ----------------------------------------------------------------------------------------------------------


def test_promotion_is_pytorchs() -> None:
    names = ["float64", "float32", "float16", "bfloat16", "int64", "uint8", "bool", "complex64", "complex128"]
    for one in names:
        for other in names:
            expected = torch.promote_types(getattr(torch, one), getattr(torch, other))
            if expected is torch.complex32 or ({one, other} & {"float16", "bfloat16"} and "complex64" in (one, other)):
                continue
            found = genesis.promote_types(getattr(genesis, one), getattr(genesis, other))
            assert str(found).split(".")[1] == str(expected).split(".")[1], (one, other)
        if one in ("float16", "bfloat16"):
            continue
        for shape in ((), (2,)):
            theirs = torch.ones(shape, dtype=getattr(torch, one)) * 1j
            mine = genesis.ones(shape, dtype=getattr(genesis, one)) * 1j
            assert str(mine.dtype).split(".")[1] == str(theirs.dtype).split(".")[1], (one, shape)
    assert (genesis.ones(2) + genesis.tensor(1j, dtype=genesis.complex128)).dtype is genesis.complex64
    assert (genesis.ones(2, dtype=genesis.float64) + genesis.tensor(1j)).dtype is genesis.complex128


@pytest.mark.parametrize(
    "values",
    [[1 + 2j, -3.5], [1 + 1j, 2 - 1j], [1e-6 + 1j, 1e6j], [complex("nan"), complex("inf")], [[1j, 2], [3, 4]], [], 2j],
    ids=str,
)
def test_printing_is_pytorchs(values: Any) -> None:
    expected = repr(torch.tensor(values, dtype=torch.complex64)).replace("torch.", "genesis.")
    assert repr(genesis.tensor(values, dtype=genesis.complex64)) == expected


def test_interchange(tmp_path: Path) -> None:
    z = genesis.tensor([[1 + 2j, 3], [4, 5j]])
    assert z.dtype is genesis.complex64
    assert z[0, 0].item() == complex(z[0, 0]) == 1 + 2j
    assert z.tolist() == [[1 + 2j, 3], [4, 5j]]
    assert z.numpy().dtype == np.complex64
    assert genesis.from_numpy(z.numpy()).data_ptr() == z.data_ptr()
    assert genesis.from_torch(z.to_torch()).data_ptr() == z.data_ptr()
    for made in (pickle.loads(pickle.dumps(z)), copy.deepcopy(z)):
        assert made.tolist() == z.tolist()
    genesis.save({"z": z}, tmp_path / "z.safetensors")
    assert genesis.load(tmp_path / "z.safetensors")["z"].tolist() == z.tolist()
    with pytest.raises(DTypeError, match=r"save: .*view_as_real\(\) of complex128, got genesis.complex128 in"):
        genesis.save({"z": z.cdouble()}, tmp_path / "z.safetensors")
    torch.save(z.to_torch(), tmp_path / "z.pt")
    assert genesis.load_torch(tmp_path / "z.pt").tolist() == z.tolist()


def test_parts_are_views() -> None:
    z = genesis.zeros(2, 2, dtype=genesis.cfloat)
    z.real[0] = 1
    z.imag = genesis.tensor([[1.0, 2.0], [3.0, 4.0]])
    genesis.view_as_real(z)[1, 1, 0].fill_(7)
    assert z.tolist() == [[1 + 1j, 1 + 2j], [3j, 7 + 4j]]
    assert z.T.real.tolist() == [[1, 0], [1, 7]]
    assert z[1:].imag.tolist() == [[3, 4]]
    pairs = genesis.zeros(3, 2)
    genesis.view_as_complex(pairs)[1] = 2 - 1j
    assert pairs.tolist() == [[0, 0], [2, -1], [0, 0]]
    assert (z.is_complex(), z.is_floating_point(), z.is_conj()) == (True, False, False)


def test_real_dtypes_take_the_real_part_with_a_warning() -> None:
    z = genesis.tensor([1 + 2j])
    with pytest.warns(UserWarning, match="Casting complex values to real discards the imaginary part"):
        assert z.float().tolist() == [1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert z.bool().tolist() == [True]
    with pytest.raises(DTypeError, match=r"logaddexp: expected real numbers, got genesis.complex64; take .real"):
        genesis.logaddexp(z, z)


MESSAGES: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "16 bits": (lambda x: genesis.fft.fft(x.half()), DTypeError, "fft: argument 'input': .* with .float"),
    "no length": (lambda x: genesis.fft.fft(x, n=0), ValueError, "fft: argument 'n': expected a length of at least 1"),
    "no norm": (lambda x: genesis.fft.fft(x, norm="x"), ValueError, "fft: argument 'norm': expected \"backward\""),
    "complex": (lambda x: genesis.fft.rfft(x * 1j), DTypeError, "rfft: argument 'input': expected real numbers"),
    "no dims": (lambda x: genesis.fft.rfftn(x, dim=()), ShapeError, "rfftn: .* expected at least one dimension"),
    "twice": (lambda x: genesis.fft.fft2(x, dim=(0, 0)), ShapeError, "fft2: .* expected distinct dimensions"),
    "sizes": (lambda x: genesis.fft.fftn(x, s=(1, 2, 3)), ShapeError, "fftn: argument 's': expected at most 2 sizes"),
    "lengths": (lambda x: genesis.fft.fftn(x, s=(1,), dim=(0, 1)), ShapeError, "fftn: argument 's': expected 2 sizes"),
    "short": (lambda x: genesis.fft.irfft(x[:, :1]), ValueError, "irfft: argument 'n': expected a length of at least"),
    "parts": (lambda x: genesis.complex(x, x.double()), DTypeError, "complex: argument 'imag': expected .*float32"),
    "pairs": (lambda x: genesis.view_as_complex(x), ShapeError, "view_as_complex: .* a last dimension of size 2"),
    "odd": (lambda x: genesis.view_as_complex(x[:, 1:3]), ShapeError, "view_as_complex: .* even places in memory"),
    "real": (lambda x: x.imag, DTypeError, "imag: argument 'input': expected a complex dtype, got genesis.float32"),
    "no flag": (lambda x: genesis.stft(x, 4), ValueError, "stft: argument 'return_complex': expected True or False"),
    "frame": (lambda x: genesis.stft(x, 9, center=False, return_complex=True), ValueError, "stft: argument 'n_fft'"),
    "window": (lambda x: genesis.stft(x, 4, window=x[0, :3], return_complex=True), ValueError, r"shape \(4,\)"),
    "gap": (
        lambda x: genesis.istft(x[:3] * 1j, 4, window=genesis.zeros(4)),
        ValueError,
        "istft: .*windows that overlap",
    ),
    "hop": (lambda x: genesis.stft(x, 4, 0, return_complex=True), ValueError, "stft: argument 'hop_length'"),
    "signal": (lambda x: genesis.istft(x, 4), DTypeError, "istft: argument 'input': expected complex"),
    "frequencies": (lambda x: genesis.istft(x * 1j, 8), ValueError, "istft: .* the frequencies of n_fft=8, got 3"),
    "sorted": (lambda x: (x * 1j).sort(), NotImplementedError, "sort has no cpu implementation for complex64; take"),
    "written": (lambda x: x.add_(1j), DTypeError, "a result of genesis.complex64 cannot be cast to .*float32"),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_messages(name: str) -> None:
    call, kind, message = MESSAGES[name]
    with pytest.raises(kind, match=message):
        call(genesis.ones(3, 4))


ON_CUDA: dict[str, Callable[[Any], Any]] = {
    "fft": lambda x: genesis.fft.fft(x),
    "rfft2": lambda x: genesis.fft.rfft2(x),
    "stft": lambda x: genesis.stft(x, 4, return_complex=True),
    "complex": lambda x: genesis.complex(x, x),
    "polar": lambda x: genesis.polar(x, x),
    "view": lambda x: x.view(genesis.complex64),
    "product": lambda x: x * 1j,
    "cast": lambda x: x.to(genesis.complex64),
    "zeros": lambda x: x.new_zeros(2, dtype=genesis.complex64),
    "moved": lambda x: genesis.tensor([1j]).to(x.device),
    "drawn": lambda x: genesis.randn(2, dtype=genesis.complex64, device=x.device),
}


@pytest.mark.parametrize("name", ON_CUDA)
def test_on_cuda_complex_numbers_are_refused_by_name(name: str) -> None:
    refused = (NotImplementedError, DTypeError)
    with override(cuda="simulated"), pytest.raises(refused, match=r"no cuda implementation|are on the CPU only"):
        ON_CUDA[name](genesis.ones(2, 8, device="cuda"))
