"""`python -m trio_monque`: the same as the `trio-monque` command."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
