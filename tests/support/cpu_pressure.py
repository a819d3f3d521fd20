"""How busy the machine is: for how long tasks waited for a processor. The kernel's page on PSI describes the file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

FILE: Final = Path("/proc/pressure/cpu")


class Pressure(NamedTuple):
    """What Linux says of the whole machine.

    Attributes:
        stalled: Seconds since the machine started in which at least one task could run and had no processor.
        avg10: Of the last ten seconds: the part in which that was so, in percent.
    """

    stalled: float
    avg10: float


def cpu_pressure(file: Path = FILE) -> Pressure | None:
    """None where the system does not count it: outside of Linux, and in some containers and kernels."""
    try:
        text = file.read_text(encoding="ascii")
    except OSError:
        return None
    found = re.search(r"^some avg10=([\d.]+) .*\btotal=(\d+)$", text, re.MULTILINE)
    return Pressure(int(found[2]) / 1e6, float(found[1])) if found else None
