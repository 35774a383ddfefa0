"""Profile ops: a table per op, and a timeline for chrome://tracing and Perfetto."""

from genesis.profiler.profile import profile as profile
from genesis.profiler.profiler import Profiler as Profiler
from genesis.profiler.table import Row as Row
