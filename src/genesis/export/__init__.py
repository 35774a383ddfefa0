"""Ways out of Genesis: genesis.export.onnx() writes a model as an ONNX file.

The forward pass is recorded (genesis.recording) and translated call by call:

    tracing.py       one run: its calls, inputs and outputs
    sizes.py         several runs of different sizes as one: what differs between them is a Size
    dynamic.py       the argument `dynamic`, and the examples of other sizes that it asks for
    program.py       which call defines which contents, in-place changes and views included
    graph.py         what a translation writes with: nodes, constants, casts, sizes
    registry.py      the table of translations; ops_*.py: its entries, a family of ops per file
    folding.py       batch norms folded into the convolutions before them
    writing.py       the file, and the one beside it for more than 2 GB
    checking.py      runs the file in ONNX Runtime and compares
    runtime.py       a file as ONNX Runtime runs it

It needs the packages of the extra `export`.
"""

from genesis.export.api import Exported as Exported
from genesis.export.api import onnx as onnx
from genesis.export.registry import NotExportableError as NotExportableError
