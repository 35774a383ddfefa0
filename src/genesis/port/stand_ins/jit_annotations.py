"""torch.jit.annotations: types of lists that scripted functions name."""

from __future__ import annotations

from typing import List as List  # noqa: UP035 the name that scripted code imports

BroadcastingList1 = BroadcastingList2 = BroadcastingList3 = list
