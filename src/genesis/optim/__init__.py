"""Optimizers, and the schedules of their learning rates."""

from genesis.optim import lr_scheduler as lr_scheduler
from genesis.optim.adam import Adam as Adam
from genesis.optim.adam import AdamW as AdamW
from genesis.optim.lars import LARS as LARS
from genesis.optim.optimizer import Optimizer as Optimizer
from genesis.optim.sgd import SGD as SGD
