"""Helpers around modules: clipping, norms of weights, parametrizations, packed sequences, folding."""

from genesis.nn.utils import parametrizations as parametrizations
from genesis.nn.utils import parametrize as parametrize
from genesis.nn.utils import prune as prune
from genesis.nn.utils import rnn as rnn
from genesis.nn.utils import stateless as stateless
from genesis.nn.utils.clip_grad import clip_grad_norm as clip_grad_norm
from genesis.nn.utils.clip_grad import clip_grad_norm_ as clip_grad_norm_
from genesis.nn.utils.clip_grad import clip_grad_value_ as clip_grad_value_
from genesis.nn.utils.clip_grad import clip_grads_with_norm_ as clip_grads_with_norm_
from genesis.nn.utils.clip_grad import get_total_norm as get_total_norm
from genesis.nn.utils.convert_parameters import parameters_to_vector as parameters_to_vector
from genesis.nn.utils.convert_parameters import vector_to_parameters as vector_to_parameters
from genesis.nn.utils.fusion import fuse_conv_bn_eval as fuse_conv_bn_eval
from genesis.nn.utils.fusion import fuse_conv_bn_weights as fuse_conv_bn_weights
from genesis.nn.utils.fusion import fuse_linear_bn_eval as fuse_linear_bn_eval
from genesis.nn.utils.fusion import fuse_linear_bn_weights as fuse_linear_bn_weights
from genesis.nn.utils.initialization import skip_init as skip_init
from genesis.nn.utils.spectral_norm import remove_spectral_norm as remove_spectral_norm
from genesis.nn.utils.spectral_norm import spectral_norm as spectral_norm
from genesis.nn.utils.weight_norm import remove_weight_norm as remove_weight_norm
from genesis.nn.utils.weight_norm import weight_norm as weight_norm
