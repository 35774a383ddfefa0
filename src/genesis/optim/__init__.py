"""Optimizers, and the schedules of their learning rates."""

from genesis.optim import lr_scheduler as lr_scheduler
from genesis.optim import swa_utils as swa_utils
from genesis.optim.adadelta import Adadelta as Adadelta
from genesis.optim.adafactor import Adafactor as Adafactor
from genesis.optim.adagrad import Adagrad as Adagrad
from genesis.optim.adam import Adam as Adam
from genesis.optim.adam import AdamW as AdamW
from genesis.optim.adamax import Adamax as Adamax
from genesis.optim.asgd import ASGD as ASGD
from genesis.optim.lars import LARS as LARS
from genesis.optim.lbfgs import LBFGS as LBFGS
from genesis.optim.muon import Muon as Muon
from genesis.optim.nadam import NAdam as NAdam
from genesis.optim.optimizer import Optimizer as Optimizer
from genesis.optim.radam import RAdam as RAdam
from genesis.optim.rmsprop import RMSprop as RMSprop
from genesis.optim.rprop import Rprop as Rprop
from genesis.optim.sgd import SGD as SGD
