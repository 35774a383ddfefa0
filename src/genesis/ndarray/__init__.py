"""Layer 3: the device-neutral array. `ops` are the contract's ops, called on arrays."""

from genesis.backends import contract
from genesis.backends.dispatch import call_of as call_of
from genesis.backends.dispatch import result_type as result_type
from genesis.ndarray.array import Array as Array
from genesis.ndarray.array import backend_of as backend_of
from genesis.ndarray.copies import Copies as Copies
from genesis.ndarray.device import CPU as CPU
from genesis.ndarray.device import Device as Device
from genesis.ndarray.device import current_index as current_index
from genesis.ndarray.device import default_device as default_device
from genesis.ndarray.device import set_current_index as set_current_index
from genesis.ndarray.device import set_default_device as set_default_device
from genesis.ndarray.ndarray import NDArray as NDArray

ops = contract
