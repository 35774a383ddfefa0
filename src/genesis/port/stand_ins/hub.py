"""torch.hub: weights of local files. Genesis downloads nothing.

The folder is PyTorch's: $TORCH_HOME/hub, $XDG_CACHE_HOME/torch/hub or ~/.cache/torch/hub, or what set_dir() says.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlparse as urlparse

from genesis.errors import CheckpointError
from genesis.interop import load_torch

HASH_REGEX = re.compile(r"-([a-f0-9]*)\.")
_folder: str | None = None


def _get_torch_home() -> str:
    caches = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    return os.path.expanduser(os.environ.get("TORCH_HOME", os.path.join(caches, "torch")))


def get_dir() -> str:
    """The folder of downloaded files."""
    return _folder if _folder is not None else os.path.join(_get_torch_home(), "hub")


def set_dir(d: str | os.PathLike[str]) -> None:
    """Set the folder of downloaded files."""
    global _folder
    _folder = os.path.expanduser(d)


def load_state_dict_from_url(
    url: str, model_dir: str | None = None, map_location: object = None, progress: bool = True,
    check_hash: bool = False, file_name: str | None = None, weights_only: bool = False,
) -> object:  # fmt: skip
    """Load the weights of a URL from the folder in which PyTorch keeps them, where they were downloaded before.

    Args:
        url: a web address, or that of a local file (file:///…).
        model_dir: the folder; by default get_dir()/checkpoints.
        map_location: ignored: tensors come to the CPU.
        progress, check_hash, weights_only: ignored: nothing is downloaded, and no code of the file runs.
        file_name: the file's name; by default the last part of the URL.
    Returns: the file's content, with Genesis' tensors.
    Raises: CheckpointError: the file is not there.
    """
    parts = urlparse(url)
    name = file_name or os.path.basename(parts.path)
    folder = Path(model_dir if model_dir is not None else os.path.join(get_dir(), "checkpoints"))
    path = Path(parts.path) if parts.scheme == "file" else folder / name
    if not path.is_file():
        raise CheckpointError(f"{path}: not there, and Genesis downloads nothing; download {url} to it")
    return load_torch(path)


def download_url_to_file(url: str, dst: str, *args: object, **kwargs: object) -> NoReturn:
    """Refuse: Genesis downloads nothing."""
    raise CheckpointError(f"{dst}: Genesis downloads nothing; download {url} to it")
