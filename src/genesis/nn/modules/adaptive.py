"""Adaptive softmax: a cross entropy over many classes, in clusters by how often they come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from genesis import functional as F
from genesis.creation import DeviceLike
from genesis.dtypes import DType
from genesis.errors import ShapeError, describe
from genesis.nn.module import Module
from genesis.nn.modules.container import ModuleList, Sequential
from genesis.nn.modules.linear import Linear
from genesis.tensor import Tensor

__all__ = ["AdaptiveLogSoftmaxWithLoss"]


class _ASMoutput(NamedTuple):
    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Module):
    """Log softmax over many classes, of which the frequent ones come first; rare ones cost little.

    The head has the classes before the first cutoff and one for each cluster of others; a cluster's own softmax, over
    fewer and fewer features, is computed only for targets in it.

    Args:
        in_features: size of the input's last dimension.
        n_classes: C, sorted by falling frequency.
        cutoffs: the first class of each cluster, ascending, in 1 … C − 1.
        div_value: by which the features of each next cluster are divided.
        head_bias: whether the head has a bias.
        device, dtype: of the parameters.
    Shape: (N, in_features) and targets (N,), or (in_features,) and () → (log probability of each target, loss ()).
    Raises: ValueError: other cutoffs, or a target that is no class. ShapeError: input and target don't fit.
    Source: Grave et al. 2016, arXiv:1609.04309.

    Example:
        >>> softmax = nn.AdaptiveLogSoftmaxWithLoss(8, 20, cutoffs=[4, 10])
        >>> output, loss = softmax(genesis.ones(3, 8), genesis.tensor([0, 5, 19]))
        >>> output.shape, loss.shape, softmax.log_prob(genesis.ones(3, 8)).shape
        ((3,), (), (3, 20))
    """

    def __init__(
        self, in_features: int, n_classes: int, cutoffs: Sequence[int], div_value: float = 4.0, head_bias: bool = False,
        device: DeviceLike = None, dtype: DType | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        places = list(cutoffs)
        ascending = all(int(place) == place for place in places) and places == sorted(set(places))
        if not places or not ascending or places[0] < 1 or places[-1] > n_classes - 1:
            expected = f"ascending integers in 1 … {n_classes - 1}, at least one"
            raise ValueError(describe("AdaptiveLogSoftmaxWithLoss", "cutoffs", expected, places))
        self.in_features, self.n_classes = in_features, n_classes
        self.cutoffs = [*places, n_classes]
        self.div_value, self.head_bias = div_value, head_bias
        self.shortlist_size, self.n_clusters = places[0], len(places)
        self.head_size = self.shortlist_size + self.n_clusters
        self.head = Linear(in_features, self.head_size, bias=head_bias, device=device, dtype=dtype)
        self.tail = ModuleList([])
        for number in range(self.n_clusters):
            hidden = int(in_features // div_value ** (number + 1))
            size = self.cutoffs[number + 1] - self.cutoffs[number]
            down = Linear(in_features, hidden, bias=False, device=device, dtype=dtype)
            self.tail.append(Sequential(down, Linear(hidden, size, bias=False, device=device, dtype=dtype)))

    def reset_parameters(self) -> None:
        """Draw all weights anew, as `nn.Linear` does.

        Example:
            >>> softmax = nn.AdaptiveLogSoftmaxWithLoss(4, 6, [2])
            >>> softmax.reset_parameters()
            >>> bool(softmax.head.weight.abs().max() <= 0.5)
            True
        """
        for module in self.modules():
            if isinstance(module, Linear):
                module.reset_parameters()

    def forward(self, input: Tensor, target: Tensor) -> _ASMoutput:
        if target.ndim > 1 or input.ndim != target.ndim + 1 or input.shape[:-1] != target.shape:
            expected = (
                f"{target.shape} and one dimension more" if target.ndim < 2 else "a target of at most 1 dimension"
            )
            raise ShapeError(describe("AdaptiveLogSoftmaxWithLoss", "input", expected, f"shape {input.shape}"))
        rows, classes = (input, target) if target.ndim else (input.unsqueeze(0), target.unsqueeze(0))
        if bool(((classes < 0) | (classes >= self.n_classes)).any()):
            found = f"{classes.min().item()} … {classes.max().item()}"
            raise ValueError(
                describe("AdaptiveLogSoftmaxWithLoss", "target", f"classes in 0 … {self.n_classes - 1}", found)
            )
        in_head, within = classes, rows.new_zeros(classes.shape)
        for number in range(self.n_clusters):
            first, last = self.cutoffs[number], self.cutoffs[number + 1]
            inside = ((classes >= first) & (classes < last)).nonzero().reshape(-1)
            if not inside.numel():
                continue
            log_probs = F.log_softmax(self.tail[number](rows.index_select(0, inside)), dim=1)
            own = log_probs.gather(1, (classes.index_select(0, inside) - first).unsqueeze(1)).squeeze(1)
            within = within.index_add(0, inside, own.to(within.dtype))
            in_head = in_head.index_fill(0, inside, self.shortlist_size + number)
        output = F.log_softmax(self.head(rows), dim=1).gather(1, in_head.unsqueeze(1)).squeeze(1) + within
        loss = (-output).mean()
        return _ASMoutput(output if target.ndim else output.squeeze(0), loss)

    def log_prob(self, input: Tensor) -> Tensor:
        """The logarithms of the probabilities of all classes.

        Args:
            input: (N, in_features).
        Returns: (N, n_classes).

        Example:
            >>> softmax = nn.AdaptiveLogSoftmaxWithLoss(4, 6, [2])
            >>> round(softmax.log_prob(genesis.ones(1, 4)).exp().sum().item(), 4)
            1.0
        """
        head = F.log_softmax(self.head(input), dim=1)
        parts = [head[:, : self.shortlist_size]]
        for number, cluster in enumerate(self.tail):
            at = self.shortlist_size + number
            parts.append(F.log_softmax(cluster(input), dim=1) + head[:, at : at + 1])
        return F.cat(parts, 1)

    def predict(self, input: Tensor) -> Tensor:
        """The class of highest probability: by the head, and where that says a cluster, of all classes.

        Args:
            input: (N, in_features).
        Returns: (N,), int64.

        Example:
            >>> nn.AdaptiveLogSoftmaxWithLoss(4, 6, [2]).predict(genesis.ones(3, 4)).shape
            (3,)
        """
        chosen = self.head(input).argmax(1)
        rest = (chosen >= self.shortlist_size).nonzero().reshape(-1)
        if not rest.numel():
            return chosen
        return chosen.index_copy(0, rest, self.log_prob(input.index_select(0, rest)).argmax(1))
