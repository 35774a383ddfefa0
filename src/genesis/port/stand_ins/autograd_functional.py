"""torch.autograd.functional."""

from __future__ import annotations

from genesis.derivatives import hessian as hessian
from genesis.derivatives import hvp as hvp
from genesis.derivatives import jacobian as jacobian
from genesis.derivatives import jvp as jvp
from genesis.derivatives import vhp as vhp
from genesis.derivatives import vjp as vjp
