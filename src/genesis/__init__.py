"""Genesis: a deep-learning framework for convolutional networks, written to be read from end to end."""

__version__ = "0.2.0"

import typing as _typing
from importlib import import_module as _import_module
from math import e as e
from math import inf as inf
from math import nan as nan
from math import pi as pi

from genesis import amp as amp
from genesis import autograd as autograd
from genesis import backends as backends
from genesis import compiler as compiler
from genesis import fft as fft
from genesis import jit as jit
from genesis import linalg as linalg
from genesis import nn as nn
from genesis import optim as optim
from genesis import signal as signal
from genesis import special as special
from genesis.amp import autocast as autocast
from genesis.autograd import enable_grad as enable_grad
from genesis.autograd import inference_mode as inference_mode
from genesis.autograd import is_grad_enabled as is_grad_enabled
from genesis.autograd import is_inference_mode_enabled as is_inference_mode_enabled
from genesis.autograd import no_grad as no_grad
from genesis.autograd import set_grad_enabled as set_grad_enabled
from genesis.checkpoint import load as load
from genesis.checkpoint import save as save
from genesis.creation import arange as arange
from genesis.creation import as_tensor as as_tensor
from genesis.creation import empty as empty
from genesis.creation import eye as eye
from genesis.creation import from_numpy as from_numpy
from genesis.creation import full as full
from genesis.creation import get_default_device as get_default_device
from genesis.creation import is_tensor as is_tensor
from genesis.creation import linspace as linspace
from genesis.creation import ones as ones
from genesis.creation import set_default_device as set_default_device
from genesis.creation import tensor as tensor
from genesis.creation import zeros as zeros
from genesis.creation_like import empty_like as empty_like
from genesis.creation_like import full_like as full_like
from genesis.creation_like import ones_like as ones_like
from genesis.creation_like import zeros_like as zeros_like
from genesis.distribution import warn_of_others as _warn_of_others
from genesis.dtypes import DType as DType
from genesis.dtypes import bfloat16 as bfloat16
from genesis.dtypes import bool_, promote
from genesis.dtypes import complex64 as complex64
from genesis.dtypes import complex128 as complex128
from genesis.dtypes import finfo as finfo
from genesis.dtypes import float16 as float16
from genesis.dtypes import float32 as float32
from genesis.dtypes import float64 as float64
from genesis.dtypes import get_default_dtype as get_default_dtype
from genesis.dtypes import iinfo as iinfo
from genesis.dtypes import int8 as int8
from genesis.dtypes import int16 as int16
from genesis.dtypes import int32 as int32
from genesis.dtypes import int64 as int64
from genesis.dtypes import set_default_dtype as set_default_dtype
from genesis.dtypes import uint8 as uint8
from genesis.functional import bitwise_left_shift as bitwise_left_shift
from genesis.functional import bitwise_right_shift as bitwise_right_shift
from genesis.functional import broadcast_to as broadcast_to
from genesis.functional import clone as clone
from genesis.functional import diagonal as diagonal
from genesis.functional import einsum as einsum
from genesis.functional import flatten as flatten
from genesis.functional import flip as flip
from genesis.functional import index_put as index_put
from genesis.functional import log_softmax as log_softmax
from genesis.functional import movedim as movedim
from genesis.functional import permute as permute
from genesis.functional import relu as relu
from genesis.functional import reshape as reshape
from genesis.functional import roll as roll
from genesis.functional import sigmoid as sigmoid
from genesis.functional import softmax as softmax
from genesis.functional import squeeze as squeeze
from genesis.functional import swapaxes as swapaxes
from genesis.functional import t as t
from genesis.functional import tanh as tanh
from genesis.functional import tile as tile
from genesis.functional import transpose as transpose
from genesis.functional import tril as tril
from genesis.functional import triu as triu
from genesis.functional import unflatten as unflatten
from genesis.functional import unsqueeze as unsqueeze
from genesis.functional.aliases import *
from genesis.functional.bessel import i0 as i0
from genesis.functional.comparison import *
from genesis.functional.complex_numbers import *
from genesis.functional.compound import *
from genesis.functional.convolve import conv as conv
from genesis.functional.convolve import conv_into as conv_into
from genesis.functional.convolve import conv_output_shape as conv_output_shape
from genesis.functional.convolve import transposed_conv as transposed_conv
from genesis.functional.convolve import transposed_conv_into as transposed_conv_into
from genesis.functional.convolve import transposed_conv_output_shape as transposed_conv_output_shape
from genesis.functional.elementwise import *
from genesis.functional.exponents import frexp as frexp
from genesis.functional.extremes import *
from genesis.functional.finite_differences import *
from genesis.functional.fractions import *
from genesis.functional.joining import *
from genesis.functional.linalg import *
from genesis.functional.matrices import *
from genesis.functional.numbers import *
from genesis.functional.products import *
from genesis.functional.quantiles import *
from genesis.functional.reduction import *
from genesis.functional.regions import *
from genesis.functional.scattering import *
from genesis.functional.searching import *
from genesis.functional.selection import *
from genesis.functional.short_time import *
from genesis.functional.sorting import *
from genesis.functional.special import *
from genesis.functional.stacking import *
from genesis.functional.statistics import *
from genesis.functional.strided import *
from genesis.functional.transcendental import *
from genesis.functional.trigonometry import *
from genesis.functional.unary import *
from genesis.generator import Generator as Generator
from genesis.graphs import compile as compile
from genesis.interop import from_dlpack as from_dlpack
from genesis.interop import from_torch as from_torch
from genesis.interop import load_torch as load_torch
from genesis.linalg import det as det
from genesis.linalg import inverse as inverse
from genesis.linalg import logdet as logdet
from genesis.linalg import matrix_exp as matrix_exp
from genesis.linalg import slogdet as slogdet
from genesis.linalg.older import adjoint as adjoint
from genesis.linalg.older import cholesky as cholesky
from genesis.linalg.older import cholesky_inverse as cholesky_inverse
from genesis.linalg.older import cholesky_solve as cholesky_solve
from genesis.linalg.older import lu_solve as lu_solve
from genesis.linalg.older import lu_unpack as lu_unpack
from genesis.linalg.older import pinverse as pinverse
from genesis.linalg.older import qr as qr
from genesis.linalg.older import svd as svd
from genesis.linalg.older import triangular_solve as triangular_solve
from genesis.ndarray import Device as Device
from genesis.precision import float32_precision as float32_precision
from genesis.precision import get_float32_precision as get_float32_precision
from genesis.precision import set_float32_precision as set_float32_precision
from genesis.printing import set_printoptions as set_printoptions
from genesis.queries import can_cast as can_cast
from genesis.queries import is_complex as is_complex
from genesis.queries import is_floating_point as is_floating_point
from genesis.queries import is_nonzero as is_nonzero
from genesis.queries import logspace as logspace
from genesis.queries import numel as numel
from genesis.queries import result_type as result_type
from genesis.queries import scalar_tensor as scalar_tensor
from genesis.queries import tril_indices as tril_indices
from genesis.queries import triu_indices as triu_indices
from genesis.random import bernoulli as bernoulli
from genesis.random import get_rng_state as get_rng_state
from genesis.random import manual_seed as manual_seed
from genesis.random import multinomial as multinomial
from genesis.random import normal as normal
from genesis.random import rand as rand
from genesis.random import rand_like as rand_like
from genesis.random import randint as randint
from genesis.random import randint_like as randint_like
from genesis.random import randn as randn
from genesis.random import randn_like as randn_like
from genesis.random import randperm as randperm
from genesis.random import set_rng_state as set_rng_state
from genesis.refused import REFUSED as _REFUSED
from genesis.shapes import Size as Size
from genesis.signal.older import *
from genesis.tensor import Tensor as Tensor
from genesis.tensor_types import BFloat16Tensor as BFloat16Tensor
from genesis.tensor_types import BoolTensor as BoolTensor
from genesis.tensor_types import ByteTensor as ByteTensor
from genesis.tensor_types import CharTensor as CharTensor
from genesis.tensor_types import DoubleTensor as DoubleTensor
from genesis.tensor_types import FloatTensor as FloatTensor
from genesis.tensor_types import HalfTensor as HalfTensor
from genesis.tensor_types import IntTensor as IntTensor
from genesis.tensor_types import LongTensor as LongTensor
from genesis.tensor_types import ShortTensor as ShortTensor

bool, promote_types = bool_, promote
dtype = DType  # PyTorch's names of the types
device = Device
double, half, long, short, int = float64, float16, int64, int16, int32
float = float32
cfloat, cdouble = complex64, complex128
channels_last, contiguous_format, preserve_format = "channels_last", "contiguous", "preserve"


_warn_of_others()

_ON_FIRST_USE = (
    "cuda",
    "data",
    "distributed",
    "distributions",
    "export",
    "growth",
    "models",
    "profiler",
    "torch",
    "utils",
)  # these import torch, or take their time
_FROM_THERE = {  # a name, and the package that it is from
    "Profiler": "profiler",
    "fuse": "fusion",
    "load_onnx": "onnx_import",
    "tune": "cuda",
    "tuning": "cuda",
}

if _typing.TYPE_CHECKING:  # the same, for type checkers and editors: a test compares them
    from genesis import cuda as cuda
    from genesis import data as data
    from genesis import distributed as distributed
    from genesis import distributions as distributions
    from genesis import export as export
    from genesis import growth as growth
    from genesis import models as models
    from genesis import profiler as profiler
    from genesis import torch as torch
    from genesis import utils as utils
    from genesis.cuda import tune as tune
    from genesis.cuda import tuning as tuning
    from genesis.fusion import fuse as fuse
    from genesis.onnx_import import load_onnx as load_onnx
    from genesis.profiler import Profiler as Profiler
else:

    def __getattr__(name: str) -> object:
        if name in _ON_FIRST_USE:
            return _import_module(f"genesis.{name}")
        if name in _FROM_THERE:
            return getattr(_import_module(f"genesis.{_FROM_THERE[name]}"), name)
        why = _REFUSED.get(name)
        raise AttributeError(f"module 'genesis' has no attribute {name!r}" + (f": {why}" if why else ""))
