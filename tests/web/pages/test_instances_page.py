"""The screens Instances and of one instance: silent ones, other holders, running jobs, strange ids."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

import pytest
from bson import ObjectId

from tests.cli.doctor_support import enter
from tests.web.http import LOOPS
from tests.web.pages.fetching import get
from tests.web.pages.job_documents import job_document
from trio_monque import Monque
from trio_monque.jobs.instance import Instance, LastBlock
from trio_monque.store.driver.types import Database
from trio_monque.store.reads.diagnosis.caps import Count
from trio_monque.store.reads.diagnosis.held_jobs import Holder
from trio_monque.web import create_app
from trio_monque.web.words.silence_sentences import sentence_of_silence

HOSTILE: Final = "<script>alert('x')</script>/\u202e"
NOW: Final = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


def hold(db: Database, by: str | None, number: int = 1, *, ago: float = 0.0, is_ours: bool = True, **more: Any) -> None:
    """Insert running jobs, claimed ten minutes ago and renewed `ago` seconds ago."""
    now = datetime.now(UTC).replace(microsecond=0)
    since, beat = now - timedelta(minutes=10), now - timedelta(seconds=ago)
    claim: dict[str, Any] = {"lockedAt": since, "lastHeartbeat": beat, "heartbeatInterval": 30_000}
    if is_ours:
        claim |= {"claimToken": f"{by}:{round(since.timestamp() * 1000)}:1", "renewedAt": beat}
    document = {**job_document("import", status="processing"), **claim, "claimedBy": by, **more}
    if not is_ours:
        del document["claimToken"]
    db["monque_jobs"].insert_many([dict(document) for _ in range(number)])


def words(text: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))


@pytest.mark.parametrize("loop", LOOPS)
def test_silent_instances_come_first_with_what_becomes_of_their_jobs(db: Database, loop: str) -> None:
    enter(db, "alive", "mail", "import", "c", "d", "e", "f")
    enter(db, "dead", "import", heartbeat_ago=75)
    hold(db, "alive", 3)
    hold(db, "dead", 2, ago=75)
    answer = get(create_app(Monque(db)), "/instances", loop=loop)
    assert answer.status_code == 200
    text = words(answer.text)
    assert "1 alive, 3 running" in text
    assert re.search(
        r"dead \(process 4711 on web-1\) has been silent for 1 m 1\d s\. Its 2 jobs become due again", text
    )
    assert re.search(r"when the lease ends, in 1\d s at the earliest", text)
    assert "and 2 more" in text
    rows = re.findall(r'<a class="strong" href="/instances/(\w+)"', answer.text)
    assert rows == ["dead", "alive"]
    assert "<title>1 silent, instances · Monque</title>" in answer.text


def test_other_holders_are_known_by_their_claims(db: Database) -> None:
    enter(db, "alive", "import")
    hold(db, "alive")
    hold(db, "node-1", 2, is_ours=False)
    hold(db, "node-2", ago=3000, is_ours=False)
    hold(db, "gone", ago=95)
    db["monque_jobs"].insert_one({**job_document("import"), "status": "processing"})
    page = get(create_app(Monque(db)), "/instances").text
    text = words(page[page.index("Other holders") :])
    assert re.search(r"node-1 Node 2 held .*All claims are renewed", text)
    assert re.search(r"node-2 Node 1 held .*1 claim not renewed: a live instance takes the jobs after its lock_t", text)
    assert re.search(r"gone ended 1 held .*Its 1 job becomes due again: the lease ended [\d.]+ s ago", text)
    assert re.search(r"no holder 1 held .*For example [0-9a-f]{24}", text)
    assert "alive" not in text
    one = get(create_app(Monque(db)), "/instances/node-1/")
    assert one.status_code == 200
    assert "known only by its claims" in one.text
    assert "has ended" in get(create_app(Monque(db)), "/instances/gone").text


REMOVED_LATER = "A live instance removes its entry when it has seen no heartbeat for ten of its intervals."


@pytest.mark.parametrize(
    ("ends_in", "alive", "sentence"),
    [
        (20.0, True, "Its 4 jobs become due again when the lease ends, in 20 s at the earliest."),
        (
            -10.0,
            True,
            "Its 4 jobs become due again: the lease ended 10 s ago, and a live instance is about to take over.",
        ),
        (20.0, False, "Its 4 jobs wait until an instance starts: no other one is alive."),
        (None, True, f"It holds no job. {REMOVED_LATER}"),
        (None, False, "It holds no job. Its entry stays while no instance is alive."),
    ],
)
def test_what_becomes_of_jobs_depends_on_their_leases_and_on_the_others(
    ends_in: float | None,
    alive: bool,
    sentence: str,
) -> None:
    entry = Instance(
        id="w", incarnation="1", host="h", pid=1, names=(), started_at=NOW, last_heartbeat=NOW - timedelta(seconds=70),
        heartbeat_interval=30.0,
    )  # fmt: skip
    holder = None
    if ends_in is not None:
        since = NOW + timedelta(seconds=ends_in - 90)
        holder = Holder(
            instance_id="w", is_ours=True, held=Count(4), silent=Count(4), silent_since=since, lease=90.0,
            example=ObjectId(), claimed_at=NOW,
        )  # fmt: skip
    found = sentence_of_silence(entry, holder, NOW, is_one_alive=alive)
    assert found == f"w (process 1 on h) has been silent for 1 m 10 s. {sentence}"


def test_an_instance_has_its_jobs_longest_first_through_the_hooks(db: Database) -> None:
    block = LastBlock("report", datetime.now(UTC) - timedelta(minutes=2), 3.125)
    limits = {"import": 90.0}
    enter(db, "w", "import", overdue_by_name={"mail": 2}, time_limits=limits, loop_blocked=4, last_block=block)
    hold(db, "w", progress={"secret": 5})
    hold(db, "w", lockedAt=datetime.now(UTC) - timedelta(hours=3), name="oldest")
    app = create_app(Monque(db), serialize_payload=lambda given: {"shown": given["field"]})
    text = get(app, "/instances/w").text
    assert "secret" not in text
    assert "{&#34;shown&#34;: &#34;progress&#34;}" in text
    assert "3 h" in words(text)
    assert text.index("oldest") < text.index("import</a></td>")
    assert "mail 2: plain handlers that are still running" in words(text)
    assert "Time limits import 1 m 30 s" in words(text)
    assert "Event loop blocked 4 times: last by report, for 3.1 s" in words(text)


def test_more_running_jobs_than_a_page_has_are_a_link(db: Database) -> None:
    enter(db, "w", "import")
    hold(db, "w", 101)
    text = get(create_app(Monque(db)), "/instances/w").text
    assert text.count('<td class="c-name">') == 100
    assert "/jobs?status=running&amp;instance=w" in text
    assert "101 of" not in text


@pytest.mark.parametrize("path", ["nobody", "%00", "x" * 3000, "..%2f..", "a%2Fb"])
def test_unknown_instance_is_a_page_of_its_own(db: Database, path: str) -> None:
    answer = get(create_app(Monque(db)), f"/instances/{path}")
    assert answer.status_code == 404
    assert "<h1>" in answer.text


def test_strange_ids_are_text_and_have_pages(db: Database) -> None:
    enter(db, HOSTILE, HOSTILE)
    hold(db, HOSTILE, name=HOSTILE, progress=HOSTILE)
    hold(db, "node/" + HOSTILE, is_ours=False)
    app = create_app(Monque(db))
    for path in (
        "/instances",
        f"/instances/{quote(HOSTILE, safe='')}",
        f"/instances/{quote('node/' + HOSTILE, safe='')}",
    ):
        answer = get(app, path)
        assert answer.status_code == 200
        assert "&lt;script&gt;" in answer.text
        assert "<script>alert" not in answer.text
        assert "\u202e" not in answer.text


def test_many_instances_are_cut_and_none_is_a_page_that_says_how_one_is_started(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(Monque(db))
    assert "trio-monque run" in get(app, "/instances").text
    monkeypatch.setattr("trio_monque.web.pages.instances_screen.MOST_INSTANCES", 2)
    for place in range(4):
        enter(db, f"w{place}", "import")
    text = get(app, "/instances").text
    assert text.count('<td class="f-id">') == 2
    assert "2 more instances are not shown" in text
