"""Layer 2: one Function per op with its gradient rule, written on NDArray. genesis.nn.functional re-exports it all."""

from genesis.functional.activation import *
from genesis.functional.attention import *
from genesis.functional.classification import *
from genesis.functional.comparison import *
from genesis.functional.conv import *
from genesis.functional.conversion import *
from genesis.functional.dense import *
from genesis.functional.einsum import *
from genesis.functional.elementwise import *
from genesis.functional.fused import *
from genesis.functional.indexing import *
from genesis.functional.interpolation import *
from genesis.functional.joining import *
from genesis.functional.linalg import *
from genesis.functional.loss import *
from genesis.functional.normalization import *
from genesis.functional.padding import *
from genesis.functional.pooling import *
from genesis.functional.random import *
from genesis.functional.reduction import *
from genesis.functional.selection import *
from genesis.functional.shape import *
from genesis.functional.tables import *
from genesis.functional.unary import *
