"""Modules: layers with parameters."""

from genesis.nn import functional as functional
