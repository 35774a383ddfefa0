"""The facade of torch as a module, for code that was rewritten and uses names that have only a stand-in."""

import sys

from genesis.port.facade import facade

sys.modules[__name__] = facade("torch")
