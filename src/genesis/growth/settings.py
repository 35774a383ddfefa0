"""The settings of layers that count channels: brought into line with the parameters after these have changed."""

from __future__ import annotations

from collections.abc import Sequence

from genesis import nn
from genesis.growth.channel_map import ChannelMap
from genesis.nn.module import Module
from genesis.nn.modules.batchnorm import _BatchNorm
from genesis.nn.modules.conv import AnyConv


def adjust_settings(model: Module, mapped: ChannelMap, group: int, units: int) -> None:
    """Say the new numbers of channels where layers said the old ones, now that `group` has `units` units.

    Grouped convolutions and group norms need theirs to compute; the others should not print what is no longer true.

    Args:
        mapped: the map from before the change.
    """
    touched = {name.rpartition(".")[0] for site in mapped.sites_of(group) for name in site.names}
    for name in touched:
        _follow_parameters(model.get_submodule(name))
    for name in mapped.passages.keys() - touched:
        module, passage = model.get_submodule(name), mapped.passages[name]
        if isinstance(module, nn.GroupNorm | nn.LayerNorm | nn.RMSNorm | _BatchNorm):
            sizes = [
                size if axis is None else mapped.size_of(axis, group, units)
                for axis, size in zip(passage.output_layout, passage.output_shape, strict=True)
            ]
            _follow_input(module, sizes)


def _follow_parameters(module: Module) -> None:
    if isinstance(module, AnyConv):
        rows, columns = module.weight.shape[:2]
        if module.groups > 1:  # blocks of channels come and go as wholes, and dimension 0 counts them
            module.groups = module.groups * rows // (module.in_channels if module.transposed else module.out_channels)
        made, taken = (columns * module.groups, rows) if module.transposed else (rows, columns * module.groups)
        module.out_channels, module.in_channels = made, taken
    elif isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, nn.Embedding):
        module.num_embeddings, module.embedding_dim = module.weight.shape
    elif isinstance(module, nn.GroupNorm):
        _follow_input(module, (0, module.get_parameter("weight").shape[0]))
    elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
        module.normalized_shape = module.get_parameter("weight").shape
    elif isinstance(module, _BatchNorm):
        shown = module.running_mean if module.weight is None else module.weight
        assert shown is not None, "the caller has found a parameter or a statistic"
        module.num_features = shown.shape[0]


def _follow_input(module: Module, sizes: Sequence[int]) -> None:
    """Adjust norms without parameters; sizes are those of their input's dimensions."""
    if isinstance(module, nn.GroupNorm):
        module.num_groups = module.num_groups * sizes[1] // module.num_channels
        module.num_channels = sizes[1]
    elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
        module.normalized_shape = tuple(sizes[-len(module.normalized_shape) :])
    elif isinstance(module, _BatchNorm):
        module.num_features = sizes[1]
