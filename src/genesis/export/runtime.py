"""An ONNX file as ONNX Runtime runs it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from genesis.errors import CheckpointError, DeviceError, GenesisError, OutOfMemoryError, describe
from genesis.export.graph import Array

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
_NO_ROOM = ("Failed to allocate memory", "bad_alloc", "BFCArena")


class RuntimeFailedError(GenesisError, RuntimeError):
    """ONNX Runtime cannot run a file on an input; the message is its own."""


class Described(NamedTuple):
    """An input or output: a size that varies is a name, or None."""

    name: str
    shape: tuple[int | str | None, ...]


def is_installed() -> bool:
    return importlib.util.find_spec("onnxruntime") is not None


class Session:
    """A file, loaded.

    Args:
        device: "cpu" or "cuda", for which the installed ONNX Runtime must be built.
    Raises: ImportError: ONNX Runtime is not installed. CheckpointError: it cannot read the file.
        DeviceError: it does not know the device.

    Attributes:
        metadata: as the file says it.
    """

    def __init__(self, path: Path, device: str = "cpu") -> None:
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        import onnxruntime

        kind, _, index = device.partition(":")
        provider = _PROVIDERS.get(kind)
        if provider not in onnxruntime.get_available_providers():
            known = [name for name, each in _PROVIDERS.items() if each in onnxruntime.get_available_providers()]
            raise DeviceError(describe("onnxruntime", "device", f"one that it has: {', '.join(known)}", repr(device)))
        with path.open("rb"):  # whatever the system says of a file that cannot be read
            pass
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        chosen = (provider, {"device_id": index}) if index else provider
        try:
            self._session = onnxruntime.InferenceSession(path, options, providers=[chosen])
        except Exception as error:  # its exceptions have no base of their own
            raise CheckpointError(f"{path}: ONNX Runtime cannot load it: {_first_line(error)}") from error
        self.path = path
        self.inputs = [Described(each.name, tuple(each.shape)) for each in self._session.get_inputs()]
        self.outputs = [Described(each.name, tuple(each.shape)) for each in self._session.get_outputs()]
        self.metadata: dict[str, str] = dict(self._session.get_modelmeta().custom_metadata_map)

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> list[Array]:
        """The outputs (all, in order, by default) for these inputs; what the file does not ask for is left out.

        Raises: RuntimeFailedError: ONNX Runtime says so. OutOfMemoryError: memory did not suffice.
        """
        known = {each.name for each in self.inputs}
        fed = {name: array for name, array in inputs.items() if name in known}
        try:
            found: list[Array] = self._session.run(None if outputs is None else list(outputs), fed)
        except Exception as error:
            if any(said in str(error) for said in _NO_ROOM):
                raise OutOfMemoryError(f"{self.path}: ONNX Runtime: {_first_line(error)}") from error
            raise RuntimeFailedError(f"{self.path}: ONNX Runtime: {_first_line(error)}") from error
        return found


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
