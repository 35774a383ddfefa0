"""Modules: layers with parameters."""

from genesis.nn import functional as functional
from genesis.nn import init as init
from genesis.nn import parallel as parallel
from genesis.nn import parameter as parameter
from genesis.nn import utils as utils
from genesis.nn.module import Module as Module
from genesis.nn.modules.activation import *
from genesis.nn.modules.attention import *
from genesis.nn.modules.batchnorm import *
from genesis.nn.modules.container import *
from genesis.nn.modules.conv import *
from genesis.nn.modules.dropout import *
from genesis.nn.modules.embedding import *
from genesis.nn.modules.folding import *
from genesis.nn.modules.fused import *
from genesis.nn.modules.likelihood import *
from genesis.nn.modules.linear import *
from genesis.nn.modules.loss import *
from genesis.nn.modules.margin_loss import *
from genesis.nn.modules.multibranch import *
from genesis.nn.modules.normalization import *
from genesis.nn.modules.padding import *
from genesis.nn.modules.parameters import *
from genesis.nn.modules.pooling import *
from genesis.nn.modules.rectifiers import *
from genesis.nn.modules.recurrent import *
from genesis.nn.modules.recurrent_cell import *
from genesis.nn.modules.sync_batchnorm import *
from genesis.nn.modules.transformer import *
from genesis.nn.modules.unpooling import *
from genesis.nn.modules.upsampling import *
from genesis.nn.parameter import Buffer as Buffer
from genesis.nn.parameter import Parameter as Parameter
