"""Model files of torchvision, timm and other libraries on Genesis, by redirected imports alone.

    python -m tests.port [--only TEXT] [--traceback]

A line per file: whole, or what stopped it. The packages must be installed.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
import warnings
from pathlib import Path

from genesis.errors import MissingNameError
from tests.port import libraries, zoo
from tests.port.comparing import PACKAGES, Sides, compare, prepare_torchvision


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], help="files whose names contain one of these")
    parser.add_argument("--traceback", action="store_true", help="show where each error comes from")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    prepare_torchvision()
    sides, whole, tried = Sides(*PACKAGES, *libraries.PACKAGES), 0, 0
    for network in (*zoo.NETWORKS, *libraries.networks()):
        if not any(text in network.file for text in arguments.only) or not network.is_installed:
            continue
        tried += 1
        start = time.perf_counter()
        try:
            compare(sides, network.build, network.size)
            said = "whole"
            whole += 1
        except KeyboardInterrupt:
            raise
        except (Exception, SystemExit) as error:
            if arguments.traceback:
                traceback.print_exc()
            said = reason(error)
        print(f"{network.file:44} {time.perf_counter() - start:5.1f} s  {said}", flush=True)
    print(f"{whole} of {tried} model files run whole")
    return 0 if whole >= 0.95 * tried else 1


def reason(error: BaseException) -> str:
    """The error, and the line of the package that it comes from."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if "site-packages" in frame.filename or "zoo" in frame.filename]
    where = f"{Path(theirs[-1].filename).name}:{theirs[-1].lineno}: " if theirs else ""
    text = " ".join(str(error).split())
    return f"{where if not isinstance(error, MissingNameError) else ''}{type(error).__name__}: {text}"[:240]


if __name__ == "__main__":
    sys.exit(main())
