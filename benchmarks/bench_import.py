"""What `import genesis` adds to `import torch`: each in a fresh process; at most 0.15 s."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from harness import Comparison

LIMIT_MS = 150.0


def milliseconds(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return (time.perf_counter() - start) * 1e3


def main() -> int:
    programs = {"torch": "import torch", "torch and genesis": "import torch, genesis", "genesis": "import genesis"}
    times: dict[str, list[float]] = {name: [] for name in programs}
    for round_number in range(8):
        for name, code in programs.items():
            elapsed = milliseconds(code)
            if round_number > 0:  # the first fills the file cache
                times[name].append(elapsed)
    comparison = Comparison("bench_import")
    comparison.add("import", times)
    added = statistics.median(times["torch and genesis"]) - statistics.median(times["torch"])
    print(f"  genesis adds {added:.0f} ms to torch (limit {LIMIT_MS:.0f} ms)")
    comparison.finish()
    return int(added > LIMIT_MS)


if __name__ == "__main__":
    sys.exit(main())
