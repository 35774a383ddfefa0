"""How an image's pixels lie in shared memory as windows are read from there: the numbers of units.cuh."""

from __future__ import annotations

import dataclasses

from genesis.backends.contract import Pair
from genesis.backends.cuda.ops.conv.problem import ConvProblem

COLUMNS = 8  # of a tile: a core matrix has so many windows
_MOST_CHANNELS, _MOST_OF_TWO = 8, 4  # of a unit's one pixel, of each of two
_ITEMSIZE, _RAW = 2, 4


@dataclasses.dataclass(frozen=True)
class Units:
    """Units of 16 bytes, and the windows that begin at them.

    Example: ResNet's, with which a window's row is four units, of eight pixels; the first of these has no tap.
        >>> units = Units(3, (7, 7), (2, 2), lead=1, granule=4)
        >>> units.pixels, units.row_chunks, units.pitch, [units.place(chunk) for chunk in range(4)]
        (2, 4, 11, [0, 1, 2, 3])
    """

    channels: int
    taps: Pair
    stride: Pair
    lead: int  # pixels ahead of a window's first tap
    granule: int  # bytes that are loaded at once

    @classmethod
    def of(cls, problem: ConvProblem) -> Units | None:
        """Return a convolution's; None: its windows do not begin at whole units."""
        p = problem
        channels, taps = p.weight_shape[1], (p.weight_shape[2], p.weight_shape[3])
        pixels, step, padding, width = _pixels(channels), p.stride[1], p.padding[1], p.input_shape[3]
        if channels > _MOST_CHANNELS or (pixels % step and (step % pixels or step // pixels not in (1, 2, 4))):
            return None
        # Two pixels of an odd number of channels are loaded as words where both are there, or neither.
        lead, is_even = 0, step % 2 == 0 and width % 2 == 0 and pixels == 2
        if channels % 2 and is_even and padding % 2 and -(-(taps[1] + 1) // 2) == -(-taps[1] // 2):
            lead = 1
        in_words = channels % 2 == 0 or (is_even and (padding + lead) % 2 == 0)
        return cls(channels, taps, p.stride, lead, 4 if in_words and p.alignment >= 4 else 2)

    @property
    def pixels(self) -> int:
        """Pixels of a unit."""
        return _pixels(self.channels)

    @property
    def planes(self) -> int:
        return max(self.stride[1] // self.pixels, 1)

    @property
    def row_chunks(self) -> int:
        """Units of a window's row."""
        return -(-(self.lead + self.taps[1]) // self.pixels)

    @property
    def paired_chunks(self) -> int:
        """The same as products take them, two at a time: of one row, where neighbours lie in planes."""
        return -(-self.row_chunks // 2) * 2 if self.planes > 1 else self.row_chunks

    @property
    def plane_units(self) -> int:
        return COLUMNS + (self.row_chunks - 1) * self.pixels // self.stride[1]

    @property
    def pitch(self) -> int:
        """Units of a patch's row."""
        return self.planes * self.plane_units

    def place(self, chunk: int) -> int:
        """The unit of a patch's row at which a chunk of its first window lies."""
        first = chunk * self.pixels
        return first % self.stride[1] // self.pixels * self.plane_units + first // self.stride[1]

    def patch_rows(self, rows: int) -> int:
        """Rows of the image that a tile of so many rows meets."""
        return (rows - 1) * self.stride[0] + self.taps[0]

    def patch_bytes(self, rows: int) -> int:
        return -(-self.patch_rows(rows) * self.pitch * 16 // 1024) * 1024

    def raw_bytes(self, rows: int) -> int:
        """Bytes of the image's rows on their way."""
        span = ((self.plane_units - 1) * self.stride[1] + self.planes * self.pixels) * self.channels * _ITEMSIZE
        return _RAW * self.patch_rows(rows) * ((span + 13) // 16 + 1) * 16

    @property
    def macros(self) -> dict[str, int]:
        return {
            "CHANNELS": self.channels, "TAPS_Y": self.taps[0], "TAPS_X": self.taps[1], "STRIDE_Y": self.stride[0],
            "STRIDE_X": self.stride[1], "LEAD": self.lead, "GRANULE": self.granule,
        }  # fmt: skip


def _pixels(channels: int) -> int:
    return 2 if channels <= _MOST_OF_TWO else 1
