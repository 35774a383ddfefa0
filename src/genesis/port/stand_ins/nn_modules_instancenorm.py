"""torch.nn.modules.instancenorm: the private base class that PyTorch code asks isinstance() about."""

from genesis.nn.modules.normalization import _InstanceNorm as _InstanceNorm
