"""torch.func: functional_call; there are no transforms of functions."""

from genesis.nn.utils.stateless import functional_call as functional_call
