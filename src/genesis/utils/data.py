"""torch.utils.data by its PyTorch path; see genesis.data, whose names these are."""

from genesis.data import BatchSampler as BatchSampler
from genesis.data import ChainDataset as ChainDataset
from genesis.data import ConcatDataset as ConcatDataset
from genesis.data import DataLoader as DataLoader
from genesis.data import Dataset as Dataset
from genesis.data import IterableDataset as IterableDataset
from genesis.data import RandomSampler as RandomSampler
from genesis.data import Sampler as Sampler
from genesis.data import SequentialSampler as SequentialSampler
from genesis.data import StackDataset as StackDataset
from genesis.data import Subset as Subset
from genesis.data import SubsetRandomSampler as SubsetRandomSampler
from genesis.data import TensorDataset as TensorDataset
from genesis.data import WeightedRandomSampler as WeightedRandomSampler
from genesis.data import default_collate as default_collate
from genesis.data import default_convert as default_convert
from genesis.data import get_worker_info as get_worker_info
from genesis.data import random_split as random_split
