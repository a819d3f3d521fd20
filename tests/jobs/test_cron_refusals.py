"""Invalid schedules always raise InvalidCronError: expressions come from Node, too."""

from __future__ import annotations

import time
import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from trio_monque.errors import InvalidCronError
from trio_monque.jobs import cron
from trio_monque.jobs.cron import check_timezone, next_occurrence, normalised

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

REFUSED = {
    "": "it has 0 fields",
    "   ": "it has 0 fields",
    "*": "it has 1 field[.]",
    "* * *": "it has 3 fields",
    "0 0 * * * *": "it has 6 fields; seconds and years cannot be given",
    "0 0 0 * * * *": "it has 7 fields; seconds",
    "60 * * * *": "minute '60' is not understood; it takes 0-59",
    "-1 * * * *": "minute '-1'",
    "x * * * *": "minute 'X'",
    "0 25 * * *": "hour '25' is not understood; it takes 0-23",
    "0 24 * * *": "hour '24'",
    "0 0 0 * *": "day-of-month '0'",
    "0 0 32 * *": "day-of-month '32'",
    "0 0 L-3 * *": "day-of-month 'L-3'",
    "0 0 15W * *": "day-of-month '15W'",
    "0 0 ? * 1": "day-of-month '[?]'",
    "0 0 * 13 *": "month '13' is not understood; it takes 1-12 or JAN-DEC",
    "0 0 * januar *": "month 'JANUAR'",
    "0 0 * * 8": "day-of-week '8' is not understood; it takes 0-7 or SUN-SAT",
    "0 0 * * MON#6": "day-of-week 'MON#6'",
    "0 0 * * L": "day-of-week 'L'",
    "0 0 * * SAT-SUN": "day-of-week 'SAT-SUN'",
    "*/0 * * * *": "minute '[*]/0'",
    "*/ * * * *": "minute '[*]/'",
    "5-1 * * * *": "minute '5-1'",
    "1,,2 * * * *": "minute '1,,2'",
    "1/2/3 * * * *": "minute '1/2/3'",
    "0 H * * *": "hour 'H'",
    "@reboot": "the known aliases are @hourly, @daily, @midnight",
    "@never": "the known aliases are @hourly",
    "@every 5m": "the known aliases are @hourly",
    "0 0 * * fr\u0131": "not in ASCII",
    "\u0665 * * * *": "not in ASCII",
    "9" * 5000 + " * * * *": "longer than 1000 characters",
    "0 0 30 2 *": "day-of-month '30' is not understood; it takes 1-31 where its months have them",
    "0 0 31 2,4 *": "day-of-month '31'",
    "0 0 */31 * MON#2": "it is never due",
    "0 0 */31 2 2#2": "it is never due",
}


@pytest.mark.parametrize(("expression", "problem"), REFUSED.items(), ids=[text[:20] for text in REFUSED])
def test_expression_that_cannot_be_understood_is_refused_with_an_example(expression: str, problem: str) -> None:
    for refuse in (normalised, lambda text: next_occurrence(text, "Europe/Berlin", NOON)):
        with pytest.raises(InvalidCronError, match=problem) as caught:
            refuse(expression)
        assert "for example '0 9 * * 1-5'" in str(caught.value)
        assert caught.value.expression == expression


@pytest.mark.parametrize("stored", [None, 5, b"0 9 * * *", ["0 9 * * *"], {}, True])
def test_cron_refuses_an_expression_that_is_not_a_string(stored: Any) -> None:
    with pytest.raises(InvalidCronError, match="it is not a string") as caught:
        normalised(stored)
    assert caught.value.expression == stored
    with pytest.raises(InvalidCronError, match="it is not a string"):
        next_occurrence(stored, None, NOON)


@pytest.mark.parametrize("expression", ["0 0 31 2,4 *", "0 0 */31 * MON#2", "0 0 29 2 */8", "0 0 29 2 *"])
def test_rare_dates_and_dates_that_never_come_are_decided_at_once(expression: str) -> None:
    started = time.thread_time()
    try:
        next_occurrence(expression, "Europe/Berlin", NOON)
    except InvalidCronError:
        assert "29" not in expression
    assert time.thread_time() - started < 0.5  # Work, not latency. Measured: 10 to 20 ms for fifty years.


def test_cron_raises_its_own_error_at_the_end_of_the_calendar() -> None:
    for zone in ("UTC", "Europe/Berlin", "America/New_York"):
        with pytest.raises(InvalidCronError, match="is not within the years 1 to 9999"):
            next_occurrence("0 0 * * *", zone, datetime.max.replace(tzinfo=UTC))


# --- Time zones ---


@pytest.mark.parametrize(
    "zone",
    [
        "Mars/Olympus",
        "",
        " UTC",
        "localtime",
        "Factory",
        "posixrules",
        "/etc/localtime",
        "/usr/share/zoneinfo/Europe/Berlin",
        "../zoneinfo/Europe/Berlin",
        "posix/Europe/Berlin",
        "right/Europe/Berlin",
        "europe/berlin",
        "utc",
        "Europe",
        "zone.tab",
        "CEST",
        "+02:00",
        "Europe/Berlin\0",
        5,
        ["UTC"],
    ],
)
def test_cron_refuses_a_zone_that_is_not_in_the_iana_database(zone: Any) -> None:
    for refuse in (check_timezone, lambda text, name: next_occurrence(text, name, NOON)):
        with pytest.raises(InvalidCronError) as caught:
            refuse("0 9 * * *", zone)
        assert f"its time zone {zone!r} is unknown; an IANA name such as 'Europe/Berlin'" in str(caught.value)
        assert caught.value.expression == "0 9 * * *"


def test_zone_is_known_by_its_iana_name_and_none_means_utc() -> None:
    # The last one is a link. Debian leaves older ones, such as Asia/Calcutta, to the package tzdata-legacy.
    names = ["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT+5", "Etc/Zulu"]
    assert [check_timezone("0 9 * * *", name) for name in names] == names
    assert check_timezone("0 9 * * *", None) == "UTC"


@pytest.fixture
def _no_zone_database(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cron, "available_timezones", set)
    cron.zone_names.cache_clear()
    yield
    cron.zone_names.cache_clear()


@pytest.mark.usefixtures("_no_zone_database")
def test_machine_without_zones_knows_utc_and_says_what_to_install() -> None:
    assert next_occurrence("0 9 * * *", "UTC", NOON) == datetime(2026, 3, 2, 9, tzinfo=UTC)
    with pytest.raises(InvalidCronError, match="no time zone database: install the package tzdata"):
        next_occurrence("0 9 * * *", "Europe/Berlin", NOON)


def test_zone_that_cannot_be_read_any_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(zoneinfo.ZoneInfo):
        def __new__(cls, key: str) -> Gone:
            raise zoneinfo.ZoneInfoNotFoundError(key)

    monkeypatch.setattr(cron, "ZoneInfo", Gone)
    with pytest.raises(InvalidCronError, match="'Europe/Berlin' cannot be read"):
        next_occurrence("0 9 * * *", "Europe/Berlin", NOON)
