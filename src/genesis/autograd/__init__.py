"""Reverse-mode autograd.

A Function's forward runs at once and leaves a Node. A node knows its inputs (its edges: another node or a leaf) and
how to turn the gradients of its outputs into those of its inputs. Nodes are numbered as they are made, and an input is
always older than what is made of it: so the backward walk is "all nodes that the result depends on, youngest first".
"""

from typing import TYPE_CHECKING

from genesis.autograd.anomaly import detect_anomaly as detect_anomaly
from genesis.autograd.anomaly import set_detect_anomaly as set_detect_anomaly
from genesis.autograd.context import Context as Context
from genesis.autograd.function import ArrayFunction as ArrayFunction
from genesis.autograd.function import BinaryFunction as BinaryFunction
from genesis.autograd.function import ElementwiseFunction as ElementwiseFunction
from genesis.autograd.function import Function as Function
from genesis.autograd.function import Unrecorded as Unrecorded
from genesis.autograd.gradcheck import gradcheck as gradcheck
from genesis.autograd.graph import Gradients as Gradients
from genesis.autograd.graph import HookHandle as HookHandle
from genesis.autograd.graph import Variable as Variable
from genesis.autograd.modes import enable_grad as enable_grad
from genesis.autograd.modes import inference_mode as inference_mode
from genesis.autograd.modes import is_grad_enabled as is_grad_enabled
from genesis.autograd.modes import is_inference_mode_enabled as is_inference_mode_enabled
from genesis.autograd.modes import no_grad as no_grad
from genesis.autograd.modes import set_grad_enabled as set_grad_enabled
from genesis.autograd.once import once_differentiable as once_differentiable
from genesis.autograd.walk import backward as backward
from genesis.autograd.walk import grad as grad
from genesis.autograd.walk import is_freed as is_freed

if TYPE_CHECKING:  # what the functional layer takes and returns has all methods of the user's class, ...
    from genesis.tensor import Tensor as Tensor
else:  # ... which is made of that layer's functions, and so is not there yet: isinstance() asks for its base
    Tensor = Variable
