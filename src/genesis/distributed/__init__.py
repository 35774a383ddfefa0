"""Processes that work together: a group of ranks, and collectives under torch.distributed's names."""

from genesis.distributed.collectives import all_gather as all_gather
from genesis.distributed.collectives import all_gather_into_tensor as all_gather_into_tensor
from genesis.distributed.collectives import all_reduce as all_reduce
from genesis.distributed.collectives import barrier as barrier
from genesis.distributed.collectives import broadcast as broadcast
from genesis.distributed.collectives import reduce as reduce
from genesis.distributed.collectives import reduce_scatter as reduce_scatter
from genesis.distributed.collectives import reduce_scatter_tensor as reduce_scatter_tensor
from genesis.distributed.group import destroy_process_group as destroy_process_group
from genesis.distributed.group import get_backend as get_backend
from genesis.distributed.group import get_rank as get_rank
from genesis.distributed.group import get_world_size as get_world_size
from genesis.distributed.group import init_process_group as init_process_group
from genesis.distributed.group import is_available as is_available
from genesis.distributed.group import is_initialized as is_initialized
from genesis.distributed.group import is_nccl_available as is_nccl_available
from genesis.distributed.objects import all_gather_object as all_gather_object
from genesis.distributed.objects import broadcast_object_list as broadcast_object_list
from genesis.distributed.objects import gather_object as gather_object
from genesis.distributed.transport import ReduceOp as ReduceOp
from genesis.distributed.transport import Work as Work
from genesis.errors import DistributedError as DistributedError
