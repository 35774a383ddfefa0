"""The public face of CUDA devices: devices, streams and events, memory, random numbers, as in torch.cuda; and kernels
of one's own: load, load_inline, triton_kernel, op.

Example:
    >>> from genesis.settings import override
    >>> with override(cuda="simulated"):
    ...     genesis.cuda.is_available(), genesis.cuda.get_device_name(0)
    (True, 'simulated')
"""

from genesis.backends.cuda.driver import KernelError as KernelError
from genesis.cuda.custom_op import op as op
from genesis.cuda.device import DeviceProperties as DeviceProperties
from genesis.cuda.device import current_device as current_device
from genesis.cuda.device import device as device
from genesis.cuda.device import device_count as device_count
from genesis.cuda.device import get_device_capability as get_device_capability
from genesis.cuda.device import get_device_name as get_device_name
from genesis.cuda.device import get_device_properties as get_device_properties
from genesis.cuda.device import is_available as is_available
from genesis.cuda.device import set_device as set_device
from genesis.cuda.device import synchronize as synchronize
from genesis.cuda.graphs import CUDAGraph as CUDAGraph
from genesis.cuda.graphs import Graph as Graph
from genesis.cuda.graphs import graph as graph
from genesis.cuda.graphs import graph_pool_handle as graph_pool_handle
from genesis.cuda.graphs import is_current_stream_capturing as is_current_stream_capturing
from genesis.cuda.memory import empty_cache as empty_cache
from genesis.cuda.memory import max_memory_allocated as max_memory_allocated
from genesis.cuda.memory import max_memory_reserved as max_memory_reserved
from genesis.cuda.memory import mem_get_info as mem_get_info
from genesis.cuda.memory import memory_allocated as memory_allocated
from genesis.cuda.memory import memory_reserved as memory_reserved
from genesis.cuda.memory import memory_stats as memory_stats
from genesis.cuda.memory import memory_summary as memory_summary
from genesis.cuda.memory import reset_peak_memory_stats as reset_peak_memory_stats
from genesis.cuda.memory import set_memory_limit as set_memory_limit
from genesis.cuda.memory import set_per_process_memory_fraction as set_per_process_memory_fraction
from genesis.cuda.modules import Module as Module
from genesis.cuda.modules import load as load
from genesis.cuda.modules import load_inline as load_inline
from genesis.cuda.plans import TuningReport as TuningReport
from genesis.cuda.plans import export_plans as export_plans
from genesis.cuda.plans import import_plans as import_plans
from genesis.cuda.plans import tune as tune
from genesis.cuda.plans import tuning as tuning
from genesis.cuda.random import get_rng_state as get_rng_state
from genesis.cuda.random import get_rng_state_all as get_rng_state_all
from genesis.cuda.random import manual_seed as manual_seed
from genesis.cuda.random import manual_seed_all as manual_seed_all
from genesis.cuda.random import set_rng_state as set_rng_state
from genesis.cuda.random import set_rng_state_all as set_rng_state_all
from genesis.cuda.streams import Event as Event
from genesis.cuda.streams import ExternalStream as ExternalStream
from genesis.cuda.streams import Stream as Stream
from genesis.cuda.streams import current_stream as current_stream
from genesis.cuda.streams import default_stream as default_stream
from genesis.cuda.streams import stream as stream
from genesis.cuda.timing import milliseconds as milliseconds
from genesis.cuda.triton_kernel import triton_kernel as triton_kernel
from genesis.errors import CaptureError as CaptureError
from genesis.errors import CompileError as CompileError
from genesis.errors import OutOfMemoryError as OutOfMemoryError
from genesis.tensor_types import CUDA_TYPES as _TYPES

DoubleTensor = _TYPES["DoubleTensor"]
FloatTensor = _TYPES["FloatTensor"]
HalfTensor = _TYPES["HalfTensor"]
BFloat16Tensor = _TYPES["BFloat16Tensor"]
LongTensor = _TYPES["LongTensor"]
IntTensor = _TYPES["IntTensor"]
ShortTensor = _TYPES["ShortTensor"]
CharTensor = _TYPES["CharTensor"]
ByteTensor = _TYPES["ByteTensor"]
BoolTensor = _TYPES["BoolTensor"]
