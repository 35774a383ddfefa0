"""torch.jit's names that genesis.jit leaves out: types that nothing has, and what only torch's own packages call."""

from __future__ import annotations

from genesis.jit import _overload as _overload_method
from genesis.jit import script_if_tracing as _script_if_tracing

__all__ = ["ScriptFunction", "ScriptModule", "_overload_method", "_script_if_tracing"]


class ScriptModule:
    """No module is one."""


class ScriptFunction:
    """No function is one."""
