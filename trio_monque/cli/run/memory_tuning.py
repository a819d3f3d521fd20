"""Settings for many short runs in many threads: Python's garbage collector, and the allocator of the C library."""

from __future__ import annotations

import ctypes
import gc
import os
from typing import Final

GARBAGE_THRESHOLDS: Final = (5000, 50, 100)
"""How many new objects there are before the garbage collector looks at them, and then at older ones.

Python's own are 700, 10 and 10. A run makes some dozens of objects, and nearly all are gone before the collector looks.
What refers to itself stays a little longer."""

# Of <malloc.h> in glibc. Other C libraries have no `mallopt`, or refuse this one.
_M_ARENA_MAX: Final = -8


def tune_garbage_collector() -> None:
    """Make the collector look at new objects less often, and never at what is loaded now."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)


def tune_allocator() -> None:
    """Let all threads share one pool of memory. To be called before there are threads.

    In glibc, each thread has a pool of its own (an arena), and keeps what it once needed. Jobs are read in changing
    threads, so payloads of a megabyte would take their memory several times over. Python's threads seldom allocate at
    the same time, so sharing costs nothing.
    """
    is_set = "MALLOC_ARENA_MAX" in os.environ or "arena_max" in os.environ.get("GLIBC_TUNABLES", "")
    set_option = None if is_set else getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_ARENA_MAX, 1)
