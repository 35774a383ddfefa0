"""Data: PyTorch's DataLoader with Genesis tensors, and the copies to the device while the last batch is used."""

from torch.utils.data import BatchSampler as BatchSampler
from torch.utils.data import ChainDataset as ChainDataset
from torch.utils.data import ConcatDataset as ConcatDataset
from torch.utils.data import Dataset as Dataset
from torch.utils.data import IterableDataset as IterableDataset
from torch.utils.data import Sampler as Sampler
from torch.utils.data import SequentialSampler as SequentialSampler
from torch.utils.data import StackDataset as StackDataset
from torch.utils.data import Subset as Subset
from torch.utils.data import get_worker_info as get_worker_info

from genesis.data.dataset import TensorDataset as TensorDataset
from genesis.data.distributed import DistributedSampler as DistributedSampler
from genesis.data.loader import DataLoader as DataLoader
from genesis.data.loader import default_collate as default_collate
from genesis.data.loader import default_convert as default_convert
from genesis.data.prefetch import prefetch as prefetch
from genesis.data.sampling import RandomSampler as RandomSampler
from genesis.data.sampling import SubsetRandomSampler as SubsetRandomSampler
from genesis.data.sampling import WeightedRandomSampler as WeightedRandomSampler
from genesis.data.sampling import random_split as random_split
