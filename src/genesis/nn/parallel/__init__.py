"""Training in several processes, and under PyTorch's name for one of several devices."""

from genesis.nn.parallel.data_parallel import DataParallel as DataParallel
from genesis.nn.parallel.distributed import DistributedDataParallel as DistributedDataParallel
