"""Modules: layers with parameters."""

from genesis.nn import functional as functional
from genesis.nn import utils as utils
