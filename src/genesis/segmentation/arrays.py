"""The type of the arrays that pictures, labels and networks exchange."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]  # what it holds is said where it is used: values from 0 to 1, numbers of classes, counts
