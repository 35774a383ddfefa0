"""Finding convolution → batch norm (→ sum) → ReLU in what a module does, and saying what was found."""

from genesis.fusion.chains import Chain as Chain
from genesis.fusion.chains import Step as Step
from genesis.fusion.chains import find_chains as find_chains
from genesis.fusion.modules import fuse as fuse
from genesis.fusion.report import Fusion as Fusion
