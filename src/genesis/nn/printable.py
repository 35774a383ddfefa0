"""Printable: the text of a module, laid out as PyTorch does."""

from __future__ import annotations

from collections.abc import Mapping


class Printable:
    """Base of Module, which has submodules."""

    def extra_repr(self) -> str:
        """The text between the parentheses of repr: the layer's settings. Override it in a layer of your own.

        Example:
            >>> nn.Linear(3, 2).extra_repr()
            'in_features=3, out_features=2, bias=True'
        """
        return ""

    def __repr__(self) -> str:
        settings = self.extra_repr()
        lines = settings.split("\n") if settings else []
        children = [f"({name}): {module!r}" for name, module in self._named_parts().items()]
        return format_parts(type(self).__name__, lines, children)

    def _named_parts(self) -> Mapping[str, object]:
        raise NotImplementedError


def format_parts(name: str, lines: list[str], children: list[str]) -> str:
    """PyTorch's layout: settings on the first line where there is nothing else, children indented by two."""
    if not children and len(lines) <= 1:
        return f"{name}({''.join(lines)})"
    return f"{name}(\n  " + "\n".join(lines + children).replace("\n", "\n  ") + "\n)"
