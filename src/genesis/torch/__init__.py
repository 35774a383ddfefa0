"""Genesis inside PyTorch programs: fused layers for its models, and ops of your own on its tensors.

    model = genesis.torch.fuse(model)

finds convolution → batch norm (→ sum) → ReLU in a torch.nn.Module and runs each as one op, in training and inference;
max pooling beside it runs by Genesis' kernels. Parameters, names, state_dict keys and the class of the model stay;
print(model.fusion) says what was found.
"""

from genesis.torch.compiling import compile as compile
from genesis.torch.fusing import fuse as fuse
from genesis.torch.fusing import report as report
from genesis.torch.fusing import unfuse as unfuse
from genesis.torch.modules import ConvBNReLU as ConvBNReLU
from genesis.torch.modules import conv_bn_relu as conv_bn_relu
from genesis.torch.norms import group_norm as group_norm
from genesis.torch.pooling import max_pool2d as max_pool2d
