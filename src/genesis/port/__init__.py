"""PyTorch's code on Genesis: redirected imports (`genesis run`) and rewritten ones (`genesis port`).

facade.py       a module of PyTorch's as redirected code sees it: Genesis' names, and placeholders for those it lacks
names.py        where a name of PyTorch's is found: a stand-in, or a module of Genesis
stand_ins/      names that have no counterpart in Genesis, and hardly need one: scripting, tracing, hub, backends
redirect.py     modules whose imports of torch give facades; everything else keeps its torch
script.py       a script run so
"""

from genesis.port.redirect import redirected as redirected
from genesis.port.script import run_script as run_script
