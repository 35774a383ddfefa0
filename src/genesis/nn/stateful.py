"""Stateful: what gives a module's state as names and tensors, and loads it back."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from genesis.errors import CheckpointError
from genesis.nn import state
from genesis.tensor import Tensor


class Stateful:
    """Base of Module, which knows the tensors of its state."""

    def _named_state(self) -> Iterator[tuple[str, Tensor]]:
        raise NotImplementedError

    def state_dict(self, *, prefix: str = "", keep_vars: bool = False) -> dict[str, Tensor]:
        """All parameters and persistent buffers by dotted name, the same names as PyTorch's; memory is shared.

        Args:
            prefix: put before each name.
            keep_vars: the parameters themselves instead of detached tensors.
        Returns: names and tensors, in the order of registration.

        Example:
            >>> list(nn.BatchNorm2d(3).state_dict())
            ['weight', 'bias', 'running_mean', 'running_var', 'num_batches_tracked']
        """
        return {prefix + name: tensor if keep_vars else tensor.detach() for name, tensor in self._named_state()}

    def load_state_dict(
        self, state_dict: Mapping[str, object], strict: bool = True, assign: bool = False
    ) -> state.IncompatibleKeys:
        """Copy the values of state_dict into parameters and buffers: all of them, or none if any does not fit.

        Args:
            state_dict: names and tensors, Genesis' or anything with __dlpack__ (PyTorch's, numpy's), of the shapes that
                the module has; they are cast to its dtypes and moved to its devices.
            strict: refuse missing and unexpected keys. Wrong shapes are always refused.
            assign: share the given memory, with its dtype and device, instead of copying.
        Returns: the missing and the unexpected keys.
        Raises: CheckpointError: the keys or the shapes do not fit; the message shows the closest names.

        Example:
            >>> layer = nn.Linear(1, 1)
            >>> layer.load_state_dict({"weight": genesis.full((1, 1), 2.0), "bias": genesis.zeros(1)})
            IncompatibleKeys(missing_keys=[], unexpected_keys=[])
            >>> layer(genesis.ones(1)).tolist()
            [2.0]
        """
        return state.load(type(self).__name__, self._named_state(), state_dict, strict, assign)

    def load(self, path: str | os.PathLike[str], strict: bool = True) -> state.IncompatibleKeys:
        """Load a file's values into parameters and buffers: all of them, or none if any does not fit.

        Args:
            path: what genesis.save() or torch.save() wrote, or any safetensors file: a state_dict, or a training's
                file with one under "model", "state_dict" or "model_state_dict". torchvision's files fit its models.
                Pickled code is never run. A prefix "module." that all keys have is dropped.
            strict: see load_state_dict.
        Returns: the missing and the unexpected keys.
        Raises: CheckpointError: the file is damaged, or the keys or the shapes do not fit; the message shows the
            closest names. FileNotFoundError: there is no such file.

        Example:
            >>> import tempfile
            >>> path = tempfile.mkdtemp() + "/linear.safetensors"
            >>> genesis.save(nn.Linear(2, 1), path)
            >>> nn.Linear(2, 1).load(path)
            IncompatibleKeys(missing_keys=[], unexpected_keys=[])
        """
        weights = state.weights_in(state.read(path), path)
        try:
            return self.load_state_dict(weights, strict)
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}") from error
