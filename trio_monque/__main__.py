"""`python -m trio_monque`: the same as the `trio-monque` command, which catches signals a little earlier."""

import sys

from trio_monque_command import main

if __name__ == "__main__":
    sys.exit(main())
