"""NCCL on two GPUs: collectives and data parallel training, eager; run where there are two."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu(count=2)

PROGRAM = """
import os
import genesis
from genesis import distributed as dist
from tests.distributed import programs

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
genesis.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl", timeout=60)
for name in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8"):
    dtype = getattr(genesis, name)
    x = (genesis.arange(6) + rank).to(dtype).to("cuda").reshape(2, 3)
    total = x.T.clone().T
    dist.all_reduce(total)
    assert total.tolist() == [[2 * i + 1 for i in range(3 * j, 3 * j + 3)] for j in range(2)], (name, total)
    parts = [genesis.zeros_like(x) for _ in range(size)]
    work = dist.all_gather(parts, x, async_op=True)
    work.wait()
    assert parts[1].flatten().tolist() == [1, 2, 3, 4, 5, 6], (name, parts)
    own = genesis.zeros(3, dtype=dtype, device="cuda")
    dist.reduce_scatter_tensor(own, x.flatten())
    assert own.tolist() == [2 * i + 1 for i in range(3 * rank, 3 * rank + 3)], (name, own)
    dist.broadcast(x, src=1)
    assert x.flatten().tolist() == [1, 2, 3, 4, 5, 6], (name, x)
try:
    dist.all_reduce(genesis.ones(2 + rank, device="cuda"))
except dist.DistributedError as error:
    assert "rank 1: all_reduce(sum, float32 [3] on cuda)" in str(error), error
else:
    raise AssertionError("no error")
programs.train(rank, size, device="cuda", dtype="float64")
programs.train(rank, size, device="cuda", dtype="float64", network="convolutional", accumulate=2)
dist.barrier()
dist.destroy_process_group()
print("rank", rank, "is done")
"""


def test_collectives_and_training(tmp_path: Path) -> None:
    pytest.importorskip("nccl", reason="nccl4py, of the extra 'nccl', is not installed")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{os.environ['PYTHONPATH']}"}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launcher, str(program)], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("is done") == 2
