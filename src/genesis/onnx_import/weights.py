"""The role of each constant of a graph: learned, moving with the module, or staying on the host."""

from __future__ import annotations

from typing import NamedTuple

from genesis.onnx_import.graph import Network
from genesis.onnx_import.registry import Array, Node, entry_of

MOST_KEPT = 64  # integers that stay on the host, unless an op wants them there
MOST_TOGETHER = 64  # constants that one weight is computed from: a layer's are few

# Inputs that are weights of layers; and those that may be, if they have several elements.
_WEIGHTS: dict[str, tuple[int, ...]] = {
    "Conv": (1, 2), "ConvTranspose": (1, 2), "Gemm": (1, 2), "BatchNormalization": (1, 2), "LayerNormalization": (1, 2),
    "RMSNormalization": (1,), "InstanceNormalization": (1, 2), "GroupNormalization": (1, 2), "PRelu": (1,),
}  # fmt: skip
_MAY_BE_WEIGHTS = ("MatMul", "Gather", "Add", "Mul", "Concat", "Expand")


class Roles(NamedTuple):
    """Constants by their role."""

    parameters: dict[str, Array]
    buffers: dict[str, Array]
    host: dict[str, Array]


def roles_of(network: Network) -> Roles:
    """The role of each constant that some node, or the caller, uses.

    Floating weights that a layer learns become parameters; what else has several floating elements becomes a buffer;
    single numbers, a few integers, and all that an op wants on the host stay there.
    """
    learned, of_layers, wanted, used = set[str](), set[str](), set[str](), set(network.outputs.values())
    origins = _origins(network)
    given = {each.name for each in network.inputs}
    for node in network.nodes:
        used.update(node.inputs)
        entry = entry_of(node.op)
        assert entry is not None
        for place, name in enumerate(node.inputs):
            if place in entry.host_inputs:
                wanted.add(name)
            elif _is_learned_at(node, place, given):
                learned.update(origins.get(name, ()))
                of_layers.update([name] if node.op in _WEIGHTS else [])
    roles = Roles({}, {}, {})
    for name, array in network.constants.items():
        if name not in used:
            continue
        is_floating = array.dtype.kind == "f"
        is_single = array.size <= 1 and not (name in of_layers and name in network.weights)
        if name in wanted or (is_single if is_floating else array.size <= MOST_KEPT):
            roles.host[name] = array
        elif is_floating and name in learned and name in network.weights:
            roles.parameters[name] = array
        else:
            roles.buffers[name] = array
    return roles


def _origins(network: Network) -> dict[str, set[str]]:
    """The constants that each value is made of which does not depend on the network's inputs."""
    origins = {name: {name} for name in network.constants}
    for node in network.nodes:
        operands = [name for name in node.inputs if name]
        if operands and all(name in origins for name in operands):
            made = set[str]().union(*[origins[name] for name in operands])
            origins |= {name: made if len(made) <= MOST_TOGETHER else set() for name in node.outputs if name}
    return origins


def _is_learned_at(node: Node, place: int, given: set[str]) -> bool:
    """A sum or a product has a weight in any place, unless it is of the network's own input."""
    if node.op in _WEIGHTS:
        return place in _WEIGHTS[node.op]
    return node.op in _MAY_BE_WEIGHTS and not (node.op in ("Add", "Mul") and given & set(node.inputs))


def attribute_names(names: list[str], taken: set[str]) -> dict[str, tuple[str, ...]]:
    """A path of attributes for each name: that of the file, split at its dots, wherever that is possible."""
    paths: dict[str, tuple[str, ...]] = {}
    leaves, inner = set[tuple[str, ...]](), set[tuple[str, ...]]()
    for name in names:
        path = tuple(name.split("."))
        prefixes = {path[:end] for end in range(1, len(path))}
        if not all(path) or path[0] in taken or path in inner or prefixes & leaves or path in leaves or len(path) > 32:
            plain, number = name.replace(".", "_") or "constant", 0
            path = (plain,)
            while path[0] in taken or path in inner or path in leaves:
                number += 1
                path = (f"{plain}_{number}",)
            prefixes = set()
        leaves.add(path)
        inner |= prefixes
        paths[name] = path
    return paths
