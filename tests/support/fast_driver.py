"""A driver that looks for its server again at once: where every other reply breaks a connection, and time is short."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest
from pymongo import common

FAST_URI: Final = "serverMonitoringMode=poll"
"""To be in the URI as well: in the other mode the driver reads for half a second before it looks at anything else."""

PAUSE: Final = 0.02


@contextmanager
def fast_driver() -> Iterator[None]:
    """For the clients that are made within the block.

    By itself the driver waits up to half a second after a connection broke, in which nothing is sent.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(common, "MIN_HEARTBEAT_INTERVAL", PAUSE)
        yield
