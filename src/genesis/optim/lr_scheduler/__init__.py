"""Schedules of the learning rate, with PyTorch's formulas.

A scheduler sets group["lr"] of its optimizer when it is created and at each step(). Most compute the new rate from the
present one, so several schedulers can be chained, and a rate that the user changes is respected.
"""

from genesis.optim.lr_scheduler.chained import ChainedScheduler as ChainedScheduler
from genesis.optim.lr_scheduler.closed_form import ConstantLR as ConstantLR
from genesis.optim.lr_scheduler.closed_form import CosineAnnealingLR as CosineAnnealingLR
from genesis.optim.lr_scheduler.closed_form import ExponentialLR as ExponentialLR
from genesis.optim.lr_scheduler.closed_form import LambdaLR as LambdaLR
from genesis.optim.lr_scheduler.closed_form import LinearLR as LinearLR
from genesis.optim.lr_scheduler.closed_form import MultiplicativeLR as MultiplicativeLR
from genesis.optim.lr_scheduler.closed_form import MultiStepLR as MultiStepLR
from genesis.optim.lr_scheduler.closed_form import PolynomialLR as PolynomialLR
from genesis.optim.lr_scheduler.closed_form import StepLR as StepLR
from genesis.optim.lr_scheduler.cyclic import CosineAnnealingWarmRestarts as CosineAnnealingWarmRestarts
from genesis.optim.lr_scheduler.cyclic import CyclicLR as CyclicLR
from genesis.optim.lr_scheduler.one_cycle import OneCycleLR as OneCycleLR
from genesis.optim.lr_scheduler.plateau import ReduceLROnPlateau as ReduceLROnPlateau
from genesis.optim.lr_scheduler.scheduler import LRScheduler as LRScheduler
from genesis.optim.lr_scheduler.sequential import SequentialLR as SequentialLR
