"""The way in from other frameworks: load_onnx() makes a module of an ONNX file.

    reading.py       the file and the weights beside it, checked: nothing is allocated that they do not hold
    graph.py         its nodes, in plain Python values, and the constants that they use
    weights.py       which constants are parameters, buffers, or numbers of the graph itself
    module.py        OnnxModule, which runs the nodes
    registry.py      the table of ops; ops_*.py: its entries, a family per file

Values are tensors, or NumPy arrays on the host: sizes and what is computed from them (see registry.py).
"""

from genesis.onnx_import.api import load_onnx as load_onnx
from genesis.onnx_import.module import OnnxModule as OnnxModule
