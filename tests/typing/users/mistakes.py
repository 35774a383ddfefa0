"""Mistakes that both checkers find. Each is ignored here, and a comment that ignores nothing is an error itself."""

import genesis
import genesis.nn.functional as F
from genesis import nn

x = genesis.ones(2)
x.rleu()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
_ = genesis.fuze  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
_ = genesis.cuda.load_inlin  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
x + "1"  # type: ignore[arg-type]  # pyright: ignore[reportOperatorIssue]
x.reshape("2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
F.relu(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
F.conv2d(x)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
F.conv2d(x, x, padding=None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
genesis.ones(2, dtype="float32")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
x.grad.tolist()  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
nn.ReLU()(x, x, x)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
nn.Linear("3", 4)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
