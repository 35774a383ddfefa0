"""What operators, methods and functions of tensors give."""

from typing import assert_type

import genesis
import genesis.nn.functional as F
from genesis import Tensor, nn

x = genesis.ones(2, 3)
p = nn.Parameter(genesis.ones(3))

# Creation
assert_type(genesis.tensor([[1, 2.5], [True, 4]]), Tensor)
assert_type(genesis.zeros(2, 3, dtype=genesis.float64, device="cpu"), Tensor)
assert_type(genesis.zeros((2, 3)), Tensor)
assert_type(genesis.randint(5, (2,)), Tensor)
assert_type(genesis.randint(0, 5, size=(2,)), Tensor)
assert_type(genesis.arange(3), Tensor)
assert_type(genesis.ones_like(x), Tensor)
assert_type(genesis.from_numpy(x.numpy()), Tensor)
assert_type(genesis.from_dlpack(x.numpy()), Tensor)

# Operators
assert_type(x + x, Tensor)
assert_type(x + 1, Tensor)
assert_type(1 - x, Tensor)
assert_type(x * 2.5, Tensor)
assert_type(2 / x, Tensor)
assert_type(x // 2, Tensor)
assert_type(x**2, Tensor)
assert_type(2**x, Tensor)
assert_type(x @ x, Tensor)
assert_type(-x, Tensor)
assert_type(abs(x), Tensor)
assert_type(x == 1, Tensor)
assert_type(x != x, Tensor)
assert_type(x < 1, Tensor)
assert_type(~(x > 0), Tensor)
assert_type((x > 0) & (x < 2), Tensor)
assert_type(p * x, Tensor)
assert_type(x[0], Tensor)
assert_type(x[..., None, 1:], Tensor)
assert_type(x[x > 0], Tensor)
x[0] = 1
x[:, 1] = x[:, 0]

# Methods
assert_type(x.relu(), Tensor)
assert_type(x.add(x, alpha=2), Tensor)
assert_type(x.reshape(3, -1), Tensor)
assert_type(x.reshape((3, 2)), Tensor)
assert_type(x.view(x.shape), Tensor)
assert_type(x.permute(1, 0), Tensor)
assert_type(x.float().half().to("cpu"), Tensor)
assert_type(x.to(genesis.float64, copy=True), Tensor)
assert_type(x.detach().clone(), Tensor)
assert_type(x.where(x > 0, 0.0), Tensor)
assert_type(x.sum(dim=1, keepdim=True), Tensor)
assert_type(x.split(1), tuple[Tensor, ...])
assert_type(x.nonzero(), Tensor)
assert_type(x.nonzero(as_tuple=True), tuple[Tensor, ...])
assert_type(x.max(), Tensor)
assert_type(x.max(x), Tensor)
assert_type(x.max(dim=1).indices, Tensor)
values, indices = x.topk(2)
assert_type(values, Tensor)
assert_type(indices, Tensor)
assert_type(list(x), list[Tensor])
assert_type(p.relu(), Tensor)

# In place: the same tensor
assert_type(x.add_(1).mul_(2).relu_(), Tensor)
assert_type(p.requires_grad_(False), nn.Parameter)
assert_type(p.zero_(), nn.Parameter)
p += 1
assert_type(p, nn.Parameter)

# What is no tensor
assert_type(x.shape, genesis.Size)
assert_type(x.size(), genesis.Size)
assert_type(x.size(0), int)
assert_type(x.dtype, genesis.DType)
assert_type(x.device, genesis.Device)
assert_type(x.ndim, int)
assert_type(x.sum().item(), bool | int | float)
assert_type(float(x.sum()), float)
assert_type(len(x), int)
assert_type(x.requires_grad, bool)
assert_type(x.grad, Tensor | None)

# Functions
assert_type(F.relu(x), Tensor)
assert_type(F.conv2d(x, x, None, stride=(1, 2), padding="same"), Tensor)
assert_type(F.max_pool2d(x, 2), Tensor)
assert_type(F.max_pool2d(x, 2, return_indices=True), tuple[Tensor, Tensor])
assert_type(F.cross_entropy(x, x), Tensor)
assert_type(F.layer_norm(x, x.shape[1:]), Tensor)
assert_type(F.interpolate(x, scale_factor=2), Tensor)
assert_type(F.pad(x, (1, 1)), Tensor)
assert_type(F.softmax(x, dim=-1), Tensor)
assert_type(genesis.cat([x, x]), Tensor)
assert_type(genesis.einsum("ij,kj->ik", x, x), Tensor)
assert_type(genesis.where(x > 0, x, 0), Tensor)
assert_type(genesis.sort(x).values, Tensor)
