"""torch.nn.modules.module: the hooks of all modules."""

from __future__ import annotations

from genesis.nn.global_hooks import register_module_backward_hook as register_module_backward_hook
from genesis.nn.global_hooks import register_module_forward_hook as register_module_forward_hook
from genesis.nn.global_hooks import register_module_forward_pre_hook as register_module_forward_pre_hook
from genesis.nn.global_hooks import register_module_full_backward_hook as register_module_full_backward_hook
from genesis.nn.global_hooks import register_module_full_backward_pre_hook as register_module_full_backward_pre_hook
from genesis.nn.module import Module as Module
