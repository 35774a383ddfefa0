"""Random programs of views, changes in place and aliases, run by Genesis and by PyTorch.

    python -m tests.fuzz_in_place 0 1000                                        the programs 0 to 999 on the CPU
    GENESIS_CUDA=simulated python -m tests.fuzz_in_place 0 100 --device cuda

After each statement both must have raised or not, and all tensors, what they say of themselves and all gradients must
agree. The first program that differs is printed up to the statement that does. Statements that docs/deviations.md lists
are not drawn; see `Draw` in fuzz_in_place_draw.py.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch

from tests.fuzz_in_place_draw import Draw
from tests.fuzz_in_place_program import DifferenceError, Program, RefusedError

TOO_LARGE = 1e4  # values beyond: what follows would compare rounding


def _is_large(x: torch.Tensor) -> bool:
    return x.numel() > 0 and not x.detach().abs().max() < TOO_LARGE


def check(seed: int, device: str = "cpu", statements: int = 16) -> Program:
    """One random program. Raises: AssertionError with its statements."""
    draw = Draw(seed, device)
    program = draw.program
    try:
        draw.start()
        for _ in range(statements):
            draw.statement()
            if seed % 2:  # in the other programs nobody looks, which in itself renews nodes of views
                program.compare()
            if draw.has_ended or any(
                theirs.numel() and not theirs.detach().abs().max() < TOO_LARGE for _, theirs in program.pairs().values()
            ):
                break
        if not draw.has_ended:
            draw.backward()
        program.compare(with_grads=not draw.has_ended)
    except RefusedError:
        pass
    except DifferenceError as error:
        where = f"python -m tests.fuzz_in_place {seed} 1"
        raise DifferenceError("\n".join([where, *program.lines, str(error)])) from None
    return program


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--keep-going", action="store_true", help="count the programs that differ")
    given = parser.parse_args()
    torch.set_num_threads(1)
    start, wrong, raised, num_statements = time.monotonic(), 0, 0, 0
    for seed in range(given.first, given.first + given.count):
        try:
            program = check(seed, given.device)
            raised += program.num_raised
            num_statements += len(program.lines)
        except DifferenceError as error:
            print(error, "\n")
            wrong += 1
            if not given.keep_going:
                return 1
    print(f"{given.count} programs, {num_statements} statements, of which both refused {raised}; {wrong} differ; "
          f"{time.monotonic() - start:.0f} s")  # fmt: skip
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
