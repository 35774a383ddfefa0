"""Draws the statements of random programs of views, changes in place and aliases: see fuzz_in_place.py."""

from __future__ import annotations

import random

import numpy as np
import torch

from tests.fuzz_in_place_program import Program, is_detached_view


def lines(block: str) -> list[str]:
    return [line.strip() for line in block.strip().splitlines()]


# {x} is a tensor, {y} one that broadcasts to it, {same} one of its shape, {rows} its size.
RESULTS = lines("""
    {x} * 2
    {x} + 1
    {x} * {y}
    {x} * {y}
    {x} + {y}
    {x} - {y}
    {x} / ({y}.abs() + 1)
    {x} ** 2
    {x}.sin()
    {x}.exp()
    {x}.sigmoid()
    {x}.tanh()
    {x}.relu()
    {x}.sum()
    lib.where({x} > 0, {x}, {y})
""")
OF_ROWS = ["{x}.sum(0)", "lib.cat([{x}, {same}])"]
CHANGES = lines("""
    {x}.add_(1)
    {x}.add_({y})
    {x}.add_({x})
    {x}.sub_({y})
    {x}.mul_(2)
    {x}.mul_({y})
    {x}.mul_(other={y})
    {x}.copy_({y})
    {x} += {y}
    {x} -= {y}
    {x} *= {y}
    {x} /= ({y}.abs() + 1)
    {x} **= 2
    {x} //= 2
    {x} %= 3
    {x}.sigmoid_()
    {x}.tanh_()
    {x}.relu_()
    {x}.exp_()
    {x}.expm1_()
    {x}.sin_()
    {x}.cos_()
    {x}.neg_()
    {x}.abs_()
    {x}.square_()
    {x}.sign_()
    {x}.floor_()
    {x}.round_()
    {x}.clamp_(-1, 1)
    F.dropout({x}, 0.5, False, True)
    F.relu({x}, inplace=True)
    F.leaky_relu({x}, 0.1, True)
    F.elu({x}, 1.5, True)
    F.hardtanh({x}, -1.0, 1.0, True)
    F.silu({x}, True)
""")
FILLS = ["{x}.zero_()", "{x}.fill_(3)", "{x}.masked_fill_({x} > 0, 0.5)", "{x}.copy_({y})", "{x}.bernoulli_(1.0)"]
FILLS_OF_ROWS = ["{x}.cumsum_(0)", "{x}.index_add_(0, arange({rows}), {same} * 1)"]
FILLS_OF_MATRICES = ["{x}.tril_()", "{x}.triu_()"]
NOTICES = [
    "{x}.retain_grad()",
    "h = {x}.register_hook(lambda g: None if g is None else seen.append(g))",
    "h = {x}.register_hook(lambda g: g if g is None else g * 2)",
]
DETACHMENTS = ["{x}.detach()", "{x}.detach()", "{x}.clone()", "{x}.data.clone()", "{x}.detach_()"]


class Draw:
    """Draws a program's statements, and leaves out what is documented to differ:

    - operands that overlap the changed tensor in memory: PyTorch refuses them or depends on the order of its loop;
    - fill_ and assignment by index tensors of expanded tensors, which Genesis refuses;
    - views made under no_grad of tensors that require grad, where gradients are recorded and PyTorch does not refuse;
    - x.mul_(x), whose gradient PyTorch refuses; changes of x.data, which PyTorch doesn't count;
    - a few statements that PyTorch gets wrong, each with its reason.
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

    # --- statements ---------------------------------------------------------------------------------------------------

    def statement(self) -> None:
        kinds = (
            (self.view, 6), (self.several_views, 1.2), (self.change, 7), (self.assign, 2.5), (self.compute, 2.5),
            (self.alias, 0.5), (self.detach, 0.7), (self.leaf, 0.7), (self.notice, 1.0), (self.reshape_in_place, 0.6),
            (self.backward, 0.5),
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
            self.program.names += names

    def start(self) -> None:
        """Two leaves, and what is made of the first: most changes of leaves are refused."""
        self.leaf(requires_grad=True)
        self.run(f"v1 = {self.program.names[0]} * 2", "v1")
        self._num_names = 2
        self.leaf()

    def target(self) -> str:
        """A tensor to change; mostly one that may."""
        free = [name for name in self.usable() if not _is_leaf_or_view_of_one(self.theirs(name))]
        return self.random.choice(free) if free and self.random.random() < 0.85 else self.any()

    def leaf(self, requires_grad: bool | None = None) -> None:
        shape = [self.random.choice((1, 2, 2, 3, 4)) for _ in range(self.random.choice((1, 1, 2, 2, 2, 3)))]
        if self.random.random() < 0.03:
            shape[0] = 0
        name, grad = self.name(), self.random.random() < 0.5 if requires_grad is None else requires_grad
        self.run(f"{name} = {self.constant(shape)}.requires_grad_({grad})", name)

    def constant(self, shape: list[int]) -> str:
        values = np.array([self.random.randint(-20, 20) / 8 for _ in range(int(np.prod(shape)))]).reshape(shape)
        empty = f".reshape({tuple(shape)}).clone()" if not values.size else ""
        return f"tensor({values.tolist()}, dtype=lib.float64){empty}"

    def alias(self) -> None:
        name = self.name()
        self.run(f"{name} = {self.any()}", name)

    def detach(self) -> None:
        x, name = self.any(), self.name()
        form = self.random.choice(DETACHMENTS)
        if "detach" in form and _overlaps_itself(self.theirs(x)):
            return  # views of it may not change where gradients are recorded, see docs/deviations.md
        if "detach_" in form and any(self.theirs(other)._base is self.theirs(x) for other in self.program.names):
            return  # its views say that they require grad, but get none
        self.run(f"{name} = {form.format(x=x)}", name)

    def notice(self) -> None:
        x = self.target()
        if not self.theirs(x).requires_grad:
            return
        form = self.random.choice(NOTICES)
        if "retain" in form and self.theirs(x)._is_view():
            return  # which node's gradient it is depends on who has looked at the view since
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
            f".expand(2, *{sizes})",
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
        return self.random.choice(forms)

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
        form = self.random.choice(RESULTS + OF_ROWS * (self.theirs(x).ndim > 0))
        self.run(f"{name} = {self.filled_in(form, x)}", name)

    def filled_in(self, form: str, x: str, apart: bool = False) -> str:
        y = self.operand(x, apart=apart) if "{y}" in form else ""
        same = self.operand(x, same=True, apart=apart) if "{same}" in form else ""
        return form.format(x=x, y=y, same=same, rows=(*self.theirs(x).shape, 0)[0])

    def operand(self, x: str, same: bool = False, apart: bool = False) -> str:
        """A tensor that broadcasts to x (same: of its shape; apart: that shows none of its memory)."""
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

    def change(self) -> None:
        x = self.target()
        theirs, forms = self.theirs(x), list(CHANGES)
        if not _overlaps_itself(theirs):
            forms += FILLS + FILLS_OF_ROWS * (theirs.ndim > 0) + FILLS_OF_MATRICES * (theirs.ndim > 1)
        form = self.random.choice(forms)
        if "//" in form and theirs.requires_grad:
            return  # has no gradient in PyTorch, here it is zero
        self.run(self.filled_in(form, x, apart=True))

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
            if part.shape == theirs.shape:
                op = "="  # else PyTorch takes a view that became a result for the leaf that it was
            value = self.constant(list(part.shape))
            fitting = [name for name in self.usable() if _broadcasts(self.theirs(name).shape, part.shape)]
            if fitting and self.random.random() < 0.8:
                value = f"{self.random.choice(fitting)}.clone()"
        self.run(f"{x}[{index}] {op} {value or '2.0'}")

    def reshape_in_place(self) -> None:
        x = self.any()
        if self._quiet and self.theirs(x).requires_grad:
            return  # PyTorch's gradients don't fit then
        if self.theirs(x).retains_grad or self.theirs(x)._backward_hooks:
            return  # PyTorch fails with an internal assertion, or keeps the hooks of before for the hooks of later
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


def _is_leaf_or_view_of_one(x: torch.Tensor) -> bool:
    base = x._base if x._is_view() else x
    return bool(x.requires_grad and base is not None and base.is_leaf)


def _overlaps_itself(x: torch.Tensor) -> bool:
    return any(size > 1 and step == 0 for size, step in zip(x.shape, x.stride(), strict=True))
