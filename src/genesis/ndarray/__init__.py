"""Layer 3: the device-neutral array."""

from genesis.ndarray.copies import Copies as Copies
from genesis.ndarray.device import CPU as CPU
from genesis.ndarray.device import Device as Device
from genesis.ndarray.device import current_index as current_index
from genesis.ndarray.device import set_current_index as set_current_index
from genesis.ndarray.dispatch import Array as Array
from genesis.ndarray.dispatch import backend_of as backend_of
from genesis.ndarray.math import binary as binary
from genesis.ndarray.math import result_type as result_type
from genesis.ndarray.ndarray import NDArray as NDArray
