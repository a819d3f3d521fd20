"""A test has five times its time in CI."""

from __future__ import annotations

import pytest

from tests.support.ci_timeouts import is_ci, lengthen

ITEMS = """
import pytest

def test_ordinary(): pass

@pytest.mark.timeout(120, method="thread")
def test_that_takes_long(): pass

@pytest.mark.timeout(timeout=7)
def test_by_name(): pass
"""


def lengthened(pytester: pytest.Pytester) -> list[float]:
    pytester.makeini("[pytest]\ntimeout = 60")
    items = pytester.getitems(ITEMS)
    lengthen(items[0].config, items)
    marks = [item.get_closest_marker("timeout") for item in items]
    assert marks[1] is not None
    assert marks[1].kwargs == {"method": "thread"}
    return [mark.args[0] if mark else 0 for mark in marks]


def test_each_timeout_is_five_times_as_long(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_TIMEOUT", raising=False)
    assert lengthened(pytester) == [300, 600, 35]


def test_timeout_of_the_environment_stays(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_TIMEOUT", "10")
    assert lengthened(pytester) == [0, 600, 35]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("CI", "true", True), ("CI", "false", False), ("CI", "", False), ("MONQUE_TEST_CI", "1", True), ("X", "1", False)],
)
def test_ci_is_known_by_the_environment(monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: bool) -> None:
    for one in ("CI", "MONQUE_TEST_CI"):
        monkeypatch.delenv(one, raising=False)
    monkeypatch.setenv(name, value)
    assert is_ci() is expected
