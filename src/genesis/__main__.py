"""`python -m genesis` is the same as `genesis`."""

import sys

from genesis.cli import main

if __name__ == "__main__":
    sys.exit(main())
