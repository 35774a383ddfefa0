"""Learnable: what is asked of the gradients of all parameters of a module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from genesis.nn.parameter import Parameter


class Learnable:
    """Base of Module, which gives parameters."""

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        raise NotImplementedError

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set whether autograd computes gradients of its parameters; False freezes them.

        Args:
            requires_grad: False to freeze.

        Example:
            >>> nn.Linear(2, 1).requires_grad_(False).weight.requires_grad
            False
        """
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Delete the gradients of all parameters, or fill them with zeros.

        Args:
            set_to_none: False fills them with zeros.

        Example:
            >>> layer = nn.Linear(2, 1)
            >>> layer(genesis.ones(1, 2)).sum().backward()
            >>> layer.zero_grad()
            >>> layer.weight.grad is None
            True
        """
        for parameter in self.parameters():
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad = parameter.grad.detach().zero_()
