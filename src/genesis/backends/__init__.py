"""The backends by the type of the device they compute on."""

from genesis import settings as _settings
from genesis.backends import tools as _tools
from genesis.backends.backend import OPS as OPS
from genesis.backends.backend import Backend as Backend
from genesis.backends.registry import active as active
from genesis.backends.registry import equip as equip
from genesis.backends.registry import get as get
from genesis.backends.registry import loaded as loaded
from genesis.backends.registry import manual_seed as manual_seed
from genesis.backends.registry import use as use
from genesis.backends.tools import Call as Call
from genesis.backends.tools import recording as recording

_settings.on_change(_tools.install)
