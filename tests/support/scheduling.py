"""Which tests run in one process of pytest-xdist, one after the other, and which wherever there is time.

By their files, as the process that hands them out knows nothing else of them. The marks of pytest-xdist do nothing
with some versions of pytest.
"""

from __future__ import annotations

from typing import Final

from xdist.scheduler import LoadScopeScheduling

LOAD: Final = "what gives the machine all that it can do"

_UNDER_LOAD: Final = ("tests/faults/", "tests/scheduler/claiming/test_contention.py")
_BUT: Final = ("tests/faults/test_seeded_schedules.py", "tests/faults/test_nurseries_under_load.py")
"""Each of the first is one process in virtual time. The others take minutes, and mostly wait: beside all others, these
minutes are not added to the whole time."""

_TOGETHER: Final = (
    "tests/store/test_hundred_thousand.py",
    "tests/browser/test_documentation_site.py",
    "tests/embedded/test_embedded_members.py",
    "tests/test_architecture.py",
    "tests/test_tests.py",
)
"""What they begin with takes long, and is for all tests of the file."""


def group_of(nodeid: str) -> str:
    """Tests of one group run in one process."""
    path = nodeid.partition("::")[0]
    if path.startswith(_UNDER_LOAD) and path not in _BUT:
        return LOAD
    return path if path in _TOGETHER else nodeid


class GroupedScheduling(LoadScopeScheduling):
    """Hands out groups in the order of the collection, to the next idle worker."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
