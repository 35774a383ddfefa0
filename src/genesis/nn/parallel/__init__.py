"""Training in several processes."""

from genesis.nn.parallel.distributed import DistributedDataParallel as DistributedDataParallel
