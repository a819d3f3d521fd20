"""`python -m trio_monque`: the same as the `trio-monque` command."""

import sys

from .entry_point import main

if __name__ == "__main__":
    sys.exit(main())
