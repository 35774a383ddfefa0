"""Random programs of views, changes in place and aliases, run by Genesis and by PyTorch.

    python -m tests.fuzz_in_place 0 1000                                        the programs 0 to 999 on the CPU
    GENESIS_CUDA=simulated python -m tests.fuzz_in_place 0 100 --device cuda

After each statement both must have raised or not, and all tensors, what they say of themselves and all gradients must
agree. The first program that differs is printed up to the statement that does. Statements that docs/deviations.md lists
are not drawn; see `Draw`.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from typing import Any, NamedTuple

import numpy as np
import torch

import genesis

TOLERANCE = {"rtol": 1e-8, "atol": 1e-10}
TOO_LARGE = 1e4  # values beyond: what follows would compare rounding
GIVES_UP = "not implemented|not supported"


class Pair(NamedTuple):
    """What a name stands for in both libraries."""

    mine: Any
    theirs: torch.Tensor


class Difference(AssertionError):
    """The libraries disagree."""


class Program:
    """The names of a program so far, in both libraries, and its statements."""

    def __init__(self, device: str) -> None:
        def mine(values: Any, **options: Any) -> Any:
            return genesis.tensor(values, device=device, **options)

        self.mine: dict[str, Any] = {
            "lib": genesis, "tensor": mine, "arange": lambda n: genesis.arange(n, device=device), "seen": [],
        }  # fmt: skip
        self.theirs: dict[str, Any] = {"lib": torch, "tensor": torch.tensor, "arange": torch.arange, "seen": []}
        self.lines: list[str] = []
        self.names: list[str] = []  # of tensors
        self.num_raised = 0

    def run(self, line: str) -> bool:
        """Run a statement in both libraries; gives whether it raised."""
        self.lines.append(line)
        outcome = []
        for names in (self.mine, self.theirs):
            try:
                exec(line, names)
                outcome.append("")
            except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError) as error:
                outcome.append(f"{type(error).__name__}: {str(error)[:300]}")
        if bool(outcome[0]) is not bool(outcome[1]):
            raise Difference(f"Genesis: {outcome[0] or 'runs'}\nPyTorch: {outcome[1] or 'runs'}")
        self.num_raised += bool(outcome[0])
        return bool(outcome[0])

    def pairs(self) -> dict[str, Pair]:
        return {name: Pair(self.mine[name], self.theirs[name]) for name in self.names}

    def compare(self, with_grads: bool = True) -> None:
        for name, (mine, theirs) in self.pairs().items():
            _same(f"{name}", mine, theirs.detach())
            if not is_detached_view(theirs):
                _same(f"{name}.requires_grad", mine.requires_grad, theirs.requires_grad)
            if with_grads and (theirs.retains_grad or _grad_fn(theirs) is None):
                _same(f"{name}.grad", mine.grad, theirs.grad)
        if not with_grads:
            return
        _same("what hooks have seen", len(self.mine["seen"]), len(self.theirs["seen"]))
        for mine, theirs in zip(self.mine["seen"], self.theirs["seen"], strict=True):
            _same("what a hook has seen", mine, theirs)


def is_detached_view(x: torch.Tensor) -> bool:
    """A view made under no_grad of what requires grad: in PyTorch it says that it does too, but gets no gradient."""
    return bool(x._is_view() and x.requires_grad and x._base.requires_grad and _grad_fn(x) is None)


def _grad_fn(x: torch.Tensor) -> Any:
    """x.grad_fn; None too where PyTorch refuses to make one for a view whose base has changed."""
    try:
        return x.grad_fn
    except RuntimeError:
        return None


def _same(what: str, mine: Any, theirs: Any) -> None:
    if isinstance(mine, genesis.Tensor) and isinstance(theirs, torch.Tensor):
        mine, theirs = mine.detach().cpu().numpy(), theirs.detach().numpy()
        fits = mine.shape == theirs.shape and mine.dtype == theirs.dtype
        if fits and np.allclose(mine, theirs, equal_nan=True, **TOLERANCE):
            return
    elif mine == theirs:
        return
    raise Difference(f"{what}\nGenesis: {mine}\nPyTorch: {theirs}")


class Draw:
    """Draws a program's statements, and leaves out what is documented to differ:

    - operands that overlap the changed tensor in memory: PyTorch refuses them or depends on the order of its loop;
    - fill_ and assignment by index tensors of expanded tensors, which Genesis refuses;
    - views made under no_grad of tensors that require grad, where gradients are recorded and PyTorch does not refuse;
    - x.mul_(x), whose gradient PyTorch refuses; changes of x.data, which PyTorch doesn't count.
    """

    def __init__(self, seed: int, device: str) -> None:
        self.random = random.Random(seed)
        self.program = Program(device)
        self._num_names = 0
        self.has_ended = False  # a backward pass has raised: which gradients there are already is not said anywhere
        self._quiet = False  # in a statement under no_grad

    # --- names --------------------------------------------------------------------------------------------------------

    def name(self) -> str:
        self._num_names += 1
        return f"v{self._num_names - 1}"

    def theirs(self, name: str) -> torch.Tensor:
        found: torch.Tensor = self.program.theirs[name]
        return found

    def usable(self) -> list[str]:
        return [name for name in self.program.names if self._quiet or not is_detached_view(self.theirs(name))]

    def any(self) -> str:
        return self.random.choice(self.usable()[-self.random.choice((3, 6, 99)) :])

    def made(self, *names: str) -> None:
        """The tensors that the last statement has named, and what has to be true of them."""
        for name in names:
            self.program.names.append(name)

    # --- statements ---------------------------------------------------------------------------------------------------

    def statement(self) -> None:
        kinds = (
            (self.view, 6), (self.several_views, 1.2), (self.change, 7), (self.assign, 2.5), (self.compute, 2.5),
            (self.alias, 0.5), (self.detach, 0.7), (self.leaf, 0.7), (self.notice, 0.6), (self.reshape_in_place, 0.6),
            (self.backward, 0.35),
        )  # fmt: skip
        draw = self.random.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
        if not self.usable():
            draw = self.leaf
        self._quiet = self.random.random() < 0.12 and draw not in (self.backward, self.notice)
        if self._quiet and not self.usable():
            return
        draw()
        self._quiet = False

    def run(self, line: str, *names: str) -> None:
        raised = self.program.run(f"with lib.no_grad(): {line}" if self._quiet else line)
        if not raised:
            self.made(*names)

    def leaf(self) -> None:
        shape = [self.random.choice((1, 2, 2, 3, 4)) for _ in range(self.random.choice((1, 1, 2, 2, 2, 3)))]
        if self.random.random() < 0.03:
            shape[0] = 0
        name, grad = self.name(), self.random.random() < 0.5
        self.run(f"{name} = {self.constant(shape)}.requires_grad_({grad})", name)

    def constant(self, shape: list[int]) -> str:
        values = np.array([self.random.randint(-20, 20) / 10 for _ in range(int(np.prod(shape)))]).reshape(shape)
        empty = f".reshape({tuple(shape)}).clone()" if not values.size else ""
        return f"tensor({values.tolist()}, dtype=lib.float64){empty}"

    def alias(self) -> None:
        name = self.name()
        self.run(f"{name} = {self.any()}", name)

    def detach(self) -> None:
        x, name = self.any(), self.name()
        form = self.random.choice(("{x}.detach()", "{x}.detach()", "{x}.clone()", "{x}.data.clone()", "{x}.detach_()"))
        if "detach_" in form and any(self.theirs(other)._base is self.theirs(x) for other in self.program.names):
            return  # its views say that they require grad, but get none
        self.run(f"{name} = {form.format(x=x)}", name)

    def notice(self) -> None:
        x = self.any()
        if not self.theirs(x).requires_grad:
            return
        form = self.random.choice(("{x}.retain_grad()", "h = {x}.register_hook(lambda g: None if g is None else seen.append(g))",
                                   "h = {x}.register_hook(lambda g: g if g is None else g * 2)"))  # fmt: skip
        if "hook" in form and self.theirs(x).is_leaf and self.theirs(x)._is_view():
            return
        self.run(form.format(x=x))

    def view(self) -> None:
        x, name = self.any(), self.name()
        self.run(f"{name} = {x}{self.view_of(self.theirs(x))}", name)

    def view_of(self, x: torch.Tensor) -> str:
        dims, sizes = x.ndim, list(x.shape)
        forms = [
            "[...]",
            "[None]",
            ".unsqueeze(-1)",
            ".squeeze()",
            ".reshape(-1)",
            ".view_as({x})",
            ".expand(2, *{sizes})",
        ]
        if x.is_contiguous():
            forms += [".view(-1)", f".view({self.factored(x.numel())})", ".flatten()"] * 2
        if dims:
            dim = self.random.randrange(dims)
            size = sizes[dim]
            colons = ":, " * dim
            forms += [f"[{colons}{self.slice(size)}]", f".transpose({dim}, -1)", f".movedim({dim}, 0)"] * 2
            forms += [f".squeeze({dim})", f".unsqueeze({dim})", f".permute({self.random.sample(range(dims), dims)})"]
            if size:
                at = self.random.randrange(size)
                forms += [f"[{colons}{at}]"] * 3
                length = self.random.randint(1, size - at)
                forms += [f".narrow({dim}, {at}, {length})"] * 2
            if size == 1:
                forms += [f".expand({sizes[:dim] + [3] + sizes[dim + 1 :]})"] * 2
        if dims >= 2:
            forms += [f".diagonal({self.random.randint(-1, 1)}, {self.random.choice(('0, 1', '-1, 0'))})"] * 2
            forms += [".mT", ".swapaxes(0, 1)"]
        if dims == 2:
            forms += [".T", ".t()"]
        return self.random.choice(forms).replace("{sizes}", str(sizes)).replace(".view_as({x})", ".detach()[...]")

    def factored(self, numel: int) -> str:
        factors = [k for k in (1, 2, 3, 4, 6) if numel and numel % k == 0] or [0]
        return f"{self.random.choice(factors)}, {'-1' if numel else '1'}"

    def slice(self, size: int) -> str:
        start, stop = sorted(self.random.randint(0, size) for _ in range(2))
        return self.random.choice((f"{start}:", f":{stop}", f"{start}:{stop}", "::2", "1::2"))

    def several_views(self) -> None:
        x = self.any()
        if not self.theirs(x).ndim:
            return
        dim = self.random.randrange(self.theirs(x).ndim)
        size = self.theirs(x).shape[dim]
        if not size:
            return
        form, count = self.random.choice(
            ((f".chunk(2, {dim})", len(self.theirs(x).detach().chunk(2, dim))), (f".split(1, {dim})", size),
             (f".split({size}, {dim})", 1), (f".unbind({dim})", size))
        )  # fmt: skip
        names = [self.name() for _ in range(count)]
        self.run(f"{', '.join(names)}{',' if count == 1 else ''} = {x}{form}", *names)

    def compute(self) -> None:
        x, name = self.any(), self.name()
        forms = ["{x} * 2", "{x}.sin()", "{x}.sigmoid()", "{x}.tanh()", "{x}.relu()", "{x} + 1", "{x} * {y}", "{x} + {y}",
                 "{x} * {y}", "{x}.sum(0)" if self.theirs(x).ndim else "{x}.sum()", "{x}.exp()", "{x} - {y}", "{x} ** 2",
                 "{x} / ({y}.abs() + 1)", "lib.where({x} > 0, {x}, {y})", "lib.cat([{x}, {y}])"]  # fmt: skip
        form = self.random.choice(forms)
        if "cat" in form and not self.theirs(x).ndim:
            return
        self.run(f"{name} = {form.format(x=x, y=self.operand(x, 'y' in form, same='cat' in form))}", name)

    def operand(self, x: str, wanted: bool = True, same: bool = False, apart: bool = False) -> str:
        """A tensor that broadcasts to x (same: of its shape; apart: that shows none of its memory)."""
        if not wanted:
            return ""
        theirs, fitting = self.theirs(x), []
        for name in self.usable():
            other = self.theirs(name)
            fits = other.shape == theirs.shape if same else _broadcasts(other.shape, theirs.shape)
            if fits:
                shares = other.untyped_storage().data_ptr() == theirs.untyped_storage().data_ptr()
                fitting.append(f"{name}.clone()" if apart and shares else name)
        if fitting and self.random.random() < 0.75:
            return self.random.choice(fitting)
        shape = list(theirs.shape)
        if not same and shape and self.random.random() < 0.3:
            shape = shape[1:]
        return self.constant(shape)

    def target(self) -> str:
        """A tensor to change."""
        return self.any()

    def change(self) -> None:
        x = self.target()
        forms = ["{x}.add_(1)", "{x}.mul_(2)", "{x}.mul_({y})", "{x}.add_({y})", "{x}.sub_({y}, alpha=2)", "{x} += {y}",
                 "{x} *= {y}", "{x} -= {y}", "{x} /= ({y}.abs() + 1)", "{x}.sigmoid_()", "{x}.sin_()", "{x}.tanh_()",
                 "{x}.relu_()", "{x}.exp_()", "{x}.neg_()", "{x}.clamp_(-1, 1)", "{x}.add_({x})", "{x} **= 2", "{x} //= 2",
                 "{x} %= 3", "{x}.square_()", "{x}.abs_()", "{x}.copy_({y})",
                 "lib.nn.functional.dropout({x}, 0.5, False, True)", "lib.nn.functional.relu({x}, inplace=True)",
                 "lib.nn.functional.leaky_relu({x}, 0.1, True)", "lib.nn.functional.elu({x}, 1.5, True)",
                 "lib.nn.functional.hardtanh({x}, -1.0, 1.0, True)", "lib.nn.functional.silu({x}, True)",
                 "{x}.mul_(other={y})", "{x}.floor_()", "{x}.round_()", "{x}.sign_()", "{x}.cos_()", "{x}.expm1_()"]  # fmt: skip
        if not _overlaps_itself(self.theirs(x)):
            forms += ["{x}.zero_()", "{x}.fill_(3)", "{x}.masked_fill_({x} > 0, 0.5)", "{x}.masked_fill_({m}, 2.0)"]
            if self.theirs(x).ndim:
                forms += ["{x}.cumsum_(0)", "{x}.index_add_(0, arange({n}), {s})"]
            if self.theirs(x).ndim >= 2:
                forms += ["{x}.tril_()", "{x}.triu_()"]
        form = self.random.choice(forms)
        if "//" in form and self.theirs(x).requires_grad:
            return  # has no gradient in PyTorch, here it is zero
        line = form.format(x=x, y=self.operand(x, "{y}" in form, apart=True), n=(*self.theirs(x).shape, 0)[0],
                           s=self.operand(x, "{s}" in form, same=True, apart=True), m=f"({x} > 0)")  # fmt: skip
        self.run(line)

    def assign(self) -> None:
        x = self.target()
        theirs = self.theirs(x)
        if not theirs.ndim or _overlaps_itself(theirs):
            return
        dim = self.random.randrange(theirs.ndim)
        size, colons = theirs.shape[dim], ":, " * dim
        index = self.random.choice((f"{colons}{self.slice(size)}", f"{colons}{self.random.randrange(size or 1)}", "...",
                                    f"{x} > 0", f"{colons}[{self.random.randrange(size or 1)}]"))  # fmt: skip
        op = self.random.choice(("=", "=", "+=", "*=", "-=")) if index != "..." else "="
        value = self.random.choice(("0", "1.5", None))
        if value is None and not index.endswith(("> 0", "]")):
            try:
                part = eval(f"x[{index}]", {"x": theirs.detach()})
            except IndexError:
                return
            value = self.constant(list(part.shape))
            fitting = [name for name in self.usable() if _broadcasts(self.theirs(name).shape, part.shape)]
            if fitting and self.random.random() < 0.8:
                value = f"{self.random.choice(fitting)}.clone()"
        if index == f"{x} > 0" and op != "=":
            index = f"{x} > 0"
        self.run(f"{x}[{index}] {op} {value or '2.0'}")

    def reshape_in_place(self) -> None:
        x = self.target()
        if self._quiet and self.theirs(x).requires_grad:
            return  # PyTorch's gradients don't fit then
        forms = [".unsqueeze_(0)", ".squeeze_()", ".squeeze_(0)" if self.theirs(x).ndim else ".squeeze_()"]
        if self.theirs(x).ndim:
            forms += [".transpose_(0, -1)"] * 3
        self.run(f"{x}{self.random.choice(forms)}")

    def backward(self) -> None:
        """The gradients of what there is, through all of it."""
        terms, factor = [], 1
        chosen = self.usable()
        self.random.shuffle(chosen)
        for x in chosen[: self.random.choice((2, 4, 99))]:
            theirs = self.theirs(x)
            if not theirs.dtype.is_floating_point:
                continue
            terms.append(f"({x} * {x}).sum() * {factor}" if self.random.random() < 0.3 else f"{x}.sum() * {factor}")
            factor += 1
        root = "tensor(1.0, dtype=lib.float64, requires_grad=True)"
        keep = self.random.choice(("", "retain_graph=True"))
        self.has_ended = self.program.run(f"({' + '.join([root, *terms])}).backward({keep})")


def _broadcasts(shape: torch.Size, target: torch.Size) -> bool:
    try:
        return torch.broadcast_shapes(shape, target) == target
    except RuntimeError:
        return False


def _overlaps_itself(x: torch.Tensor) -> bool:
    return any(size > 1 and step == 0 for size, step in zip(x.shape, x.stride(), strict=True))


def check(seed: int, device: str = "cpu", statements: int = 14) -> Program:
    """One random program. Raises: AssertionError with its statements."""
    draw = Draw(seed, device)
    program = draw.program
    try:
        for _ in range(2):
            draw.leaf()
        for _ in range(statements):
            draw.statement()
            if seed % 2:  # in the other programs nobody looks, which in itself renews nodes of views
                program.compare()
            if draw.has_ended or any(
                theirs.numel() and not theirs.detach().abs().max() < TOO_LARGE for _, theirs in program.pairs().values()
            ):
                break
        if not draw.has_ended:
            draw.backward()
        program.compare(with_grads=not draw.has_ended)
    except Difference as error:
        where = f"python -m tests.fuzz_in_place {seed} 1"
        raise Difference("\n".join([where, *program.lines, str(error)])) from None
    return program


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--keep-going", action="store_true", help="count the programs that differ")
    given = parser.parse_args()
    torch.set_num_threads(1)
    start, wrong, raised, num_statements = time.monotonic(), 0, 0, 0
    for seed in range(given.first, given.first + given.count):
        try:
            program = check(seed, given.device)
            raised += program.num_raised
            num_statements += len(program.lines)
        except Difference as error:
            print(error, "\n")
            wrong += 1
            if not given.keep_going:
                return 1
    print(f"{given.count} programs, {num_statements} statements, of which both refused {raised}; {wrong} differ; "
          f"{time.monotonic() - start:.0f} s")  # fmt: skip
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
