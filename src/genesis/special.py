"""PyTorch's torch.special: the functions of `genesis.functional` that it names too."""

from genesis.functional import digamma as digamma
from genesis.functional import entr as entr
from genesis.functional import erf as erf
from genesis.functional import erfc as erfc
from genesis.functional import erfcx as erfcx
from genesis.functional import erfinv as erfinv
from genesis.functional import exp2 as exp2
from genesis.functional import expm1 as expm1
from genesis.functional import gammainc as gammainc
from genesis.functional import gammaincc as gammaincc
from genesis.functional import i0 as i0
from genesis.functional import i0e as i0e
from genesis.functional import i1 as i1
from genesis.functional import i1e as i1e
from genesis.functional import lgamma as gammaln
from genesis.functional import log1p as log1p
from genesis.functional import log_ndtr as log_ndtr
from genesis.functional import log_softmax as log_softmax
from genesis.functional import logit as logit
from genesis.functional import logsumexp as logsumexp
from genesis.functional import mvlgamma as multigammaln
from genesis.functional import ndtr as ndtr
from genesis.functional import ndtri as ndtri
from genesis.functional import polygamma as polygamma
from genesis.functional import round as round
from genesis.functional import sigmoid as expit
from genesis.functional import sinc as sinc
from genesis.functional import softmax as softmax
from genesis.functional import xlog1py as xlog1py
from genesis.functional import xlogy as xlogy
from genesis.functional import zeta as zeta

__all__ = [
    "digamma", "entr", "erf", "erfc", "erfcx", "erfinv", "exp2", "expit", "expm1", "gammainc", "gammaincc", "gammaln",
    "i0", "i0e", "i1", "i1e", "log1p", "log_ndtr", "log_softmax", "logit", "logsumexp", "multigammaln", "ndtr",
    "ndtri", "polygamma", "psi", "round", "sinc", "softmax", "xlog1py", "xlogy", "zeta",
]  # fmt: skip

psi = digamma
