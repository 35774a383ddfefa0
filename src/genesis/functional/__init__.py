"""Layer 2: one Function per op with its gradient rule, written on NDArray. genesis.nn.functional re-exports all of it."""

from genesis.functional.activation import *  # noqa: F403
