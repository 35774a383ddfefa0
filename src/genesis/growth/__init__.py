"""Networks that change their shape while they train: wider, deeper, more branches, pruned; each step whole or not at
all, and exact: the network computes what it computed.

See docs/growth.md.
"""

from genesis.growth.channel_map import ChannelMap as ChannelMap
from genesis.growth.channel_map import channel_map as channel_map
from genesis.growth.history import History as History
from genesis.growth.history import Step as Step
from genesis.growth.history import history as history
from genesis.growth.history import rollback as rollback
from genesis.growth.picture import picture as picture
from genesis.growth.replay import load as load
from genesis.growth.replay import replay as replay
from genesis.growth.replay import save as save
from genesis.growth.rules import register_rule as register_rule
from genesis.growth.rules_shapes import elementwise as elementwise
from genesis.growth.rules_shapes import same_size as same_size
from genesis.growth.schedule import Event as Event
from genesis.growth.schedule import Plateau as Plateau
from genesis.growth.schedule import Point as Point
from genesis.growth.schedule import Schedule as Schedule
from genesis.growth.schedule import at_epochs as at_epochs
from genesis.growth.structure import grow_branches as grow_branches
from genesis.growth.structure import grow_depth as grow_depth
from genesis.growth.structure import prune_branches as prune_branches
from genesis.growth.transaction import transaction as transaction
from genesis.growth.width import grow_width as grow_width
from genesis.growth.width import prune_width as prune_width
