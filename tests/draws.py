"""Where draws from the uniform distribution are PyTorch's bit for bit, and all that begins with them."""

from __future__ import annotations

import pytest
import torch

FUSED = torch.backends.cpu.get_cpu_capability() != "DEFAULT"
"""Whether PyTorch scales draws by a fused multiply-add, as Genesis does: without AVX2 it rounds twice."""

needs_equal_draws = pytest.mark.skipif(not FUSED, reason="without AVX2 PyTorch rounds uniform draws twice")
