"""torch.serialization: which classes torch.load may build from a file, which genesis.load reads it by."""

from torch.serialization import add_safe_globals as add_safe_globals
from torch.serialization import clear_safe_globals as clear_safe_globals
from torch.serialization import get_safe_globals as get_safe_globals
from torch.serialization import safe_globals as safe_globals
