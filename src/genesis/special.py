"""PyTorch's torch.special: the functions of `genesis.functional` that it names too."""

from genesis.functional import digamma as digamma
from genesis.functional import entr as entr
from genesis.functional import erf as erf
from genesis.functional import erfc as erfc
from genesis.functional import erfinv as erfinv
from genesis.functional import exp2 as exp2
from genesis.functional import expm1 as expm1
from genesis.functional import lgamma as gammaln
from genesis.functional import log1p as log1p
from genesis.functional import log_softmax as log_softmax
from genesis.functional import logit as logit
from genesis.functional import logsumexp as logsumexp
from genesis.functional import mvlgamma as multigammaln
from genesis.functional import ndtr as ndtr
from genesis.functional import polygamma as polygamma
from genesis.functional import round as round
from genesis.functional import sigmoid as expit
from genesis.functional import sinc as sinc
from genesis.functional import softmax as softmax
from genesis.functional import xlog1py as xlog1py
from genesis.functional import xlogy as xlogy

__all__ = [
    "digamma", "entr", "erf", "erfc", "erfinv", "exp2", "expit", "expm1", "gammaln", "log1p", "log_softmax", "logit",
    "logsumexp", "multigammaln", "ndtr", "polygamma", "psi", "round", "sinc", "softmax", "xlog1py", "xlogy",
]  # fmt: skip

psi = digamma
