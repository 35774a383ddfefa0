"""Mixed precision: autocast chooses the dtype of each function, GradScaler keeps small gradients alive."""

from genesis.amp.casting import autocast as autocast
from genesis.amp.casting import is_autocast_enabled as is_autocast_enabled
from genesis.amp.custom import custom_bwd as custom_bwd
from genesis.amp.custom import custom_fwd as custom_fwd
from genesis.amp.grad_scaler import GradScaler as GradScaler
