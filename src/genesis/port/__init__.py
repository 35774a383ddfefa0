"""PyTorch's code on Genesis: redirected imports (`genesis run`) and rewritten ones (`genesis port`).

facade.py       a module of PyTorch's as redirected code sees it, and placeholders for what Genesis lacks
imports.py      the import statement of redirected code
names.py        where a name of PyTorch's is found: in a module of Genesis, or among the stand-ins
stand_ins/      names that have no counterpart, and hardly need one: scripting, tracing, hub, backends
advice.py       what to do instead of a name that is missing
redirect.py     modules whose imports of torch give facades; everything else keeps its torch
script.py       a script or a module run so
main_module.py  the main module of such a run
processes.py    the processes that it starts
scan.py         the names of PyTorch's that a source file imports and uses
rewrite.py      the imports of a source file rewritten
notebook.py     those of a notebook
"""

from genesis.port.notebook import rewrite_notebook as rewrite_notebook
from genesis.port.redirect import redirected as redirected
from genesis.port.rewrite import rewrite as rewrite
from genesis.port.script import run_module as run_module
from genesis.port.script import run_script as run_script
