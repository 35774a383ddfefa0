"""PyTorch's torch.linalg on every device, with gradients of gradients; what has complex results is not there.

Decompositions are LAPACK's: on a CUDA device, matrices are copied to the host for them.
"""

from genesis.errors import LinAlgError as LinAlgError
from genesis.functional import matmul as matmul
from genesis.linalg.factors import cholesky as cholesky
from genesis.linalg.factors import cholesky_ex as cholesky_ex
from genesis.linalg.factors import householder_product as householder_product
from genesis.linalg.factors import lu as lu
from genesis.linalg.factors import lu_factor as lu_factor
from genesis.linalg.factors import lu_factor_ex as lu_factor_ex
from genesis.linalg.factors import qr as qr
from genesis.linalg.products import cond as cond
from genesis.linalg.products import cross as cross
from genesis.linalg.products import diagonal as diagonal
from genesis.linalg.products import matrix_exp as matrix_exp
from genesis.linalg.products import matrix_norm as matrix_norm
from genesis.linalg.products import matrix_power as matrix_power
from genesis.linalg.products import multi_dot as multi_dot
from genesis.linalg.products import norm as norm
from genesis.linalg.products import vander as vander
from genesis.linalg.products import vecdot as vecdot
from genesis.linalg.products import vector_norm as vector_norm
from genesis.linalg.spectra import eigh as eigh
from genesis.linalg.spectra import eigvalsh as eigvalsh
from genesis.linalg.spectra import lstsq as lstsq
from genesis.linalg.spectra import matrix_rank as matrix_rank
from genesis.linalg.spectra import pinv as pinv
from genesis.linalg.spectra import svd as svd
from genesis.linalg.spectra import svdvals as svdvals
from genesis.linalg.systems import det as det
from genesis.linalg.systems import inv as inv
from genesis.linalg.systems import inv_ex as inv_ex
from genesis.linalg.systems import inverse as inverse
from genesis.linalg.systems import logdet as logdet
from genesis.linalg.systems import lu_solve as lu_solve
from genesis.linalg.systems import slogdet as slogdet
from genesis.linalg.systems import solve as solve
from genesis.linalg.systems import solve_ex as solve_ex
from genesis.linalg.systems import solve_triangular as solve_triangular
from genesis.linalg.systems import tensorinv as tensorinv
from genesis.linalg.systems import tensorsolve as tensorsolve
