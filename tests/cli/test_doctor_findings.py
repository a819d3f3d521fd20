"""The doctor's table of findings, and its judgement of facts that no test can plant in a server."""

from __future__ import annotations

import re
from pathlib import Path
from string import Formatter
from typing import Any

import pytest

from trio_monque.cli.doctor.kind_words import KindWords
from trio_monque.cli.doctor.shown_finding import KINDS, MOST_LISTED, OtherIds, ShownFinding, shown
from trio_monque.diagnosis import Severity, judgement, judging_server
from trio_monque.diagnosis.facts import Facts, IndexFacts, ServerFacts
from trio_monque.diagnosis.findings import SEVERITIES
from trio_monque.store.reads.diagnosis.index_health import Indexes, Plan
from trio_monque.store.reads.diagnosis.server import Member, Server, Topology
from trio_monque.store.reads.diagnosis.streams import WriteTotals

UP = Member(address="a:1", state="PRIMARY", is_up=True)
ALSO_UP = Member(address="b:1", state="SECONDARY", is_up=True)
DOWN = Member(address="c:1", state="(not reachable/healthy)", is_up=False)
ARBITER = Member(address="d:1", state="ARBITER", is_up=True)


def replica_set(*members: Member, **fields: Any) -> Server:
    return Server(
        **{"version": "6.0.27", "topology": Topology.REPLICA_SET, "has_primary": True, "members": members, **fields}
    )


def sentences(*found: ShownFinding) -> list[str]:
    return [one.sentence for one in found]


def judge(facts: Facts) -> list[ShownFinding]:
    return [shown(one) for one in judgement.judge(facts)]


def judge_server(facts: ServerFacts) -> list[ShownFinding]:
    return [shown(one) for one in judging_server.judge_server(facts)]


def judge_indexes(facts: IndexFacts) -> list[ShownFinding]:
    return [shown(one) for one in judging_server.judge_indexes(facts)]


def test_terminal_has_words_for_every_kind_in_the_order_of_the_table() -> None:
    assert list(KINDS) == list(SEVERITIES)


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_texts_of_each_kind_are_sentences_with_fields(kind: KindWords) -> None:
    assert KINDS[kind.name] is kind
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", kind.name)
    for text in (kind.sentence, kind.advice):
        assert re.match(r"[A-Z{]", text)
        assert text.endswith((".", "}"))
        fields = {field for _, field, _, _ in Formatter().parse(text) if field is not None}
        assert all(field.isidentifier() for field in fields)
    in_advice = {field for _, field, _, _ in Formatter().parse(kind.advice) if field is not None}
    filled = ShownFinding(kind, dict.fromkeys(in_advice, "x"))
    assert "{" not in filled.advice


def test_long_list_in_a_sentence_ends_with_the_number_of_the_rest() -> None:
    ids = OtherIds(f"w{number}" for number in range(MOST_LISTED + 2))
    assert f"{ids}" == f" Also: {', '.join(ids[:MOST_LISTED])} and 2 more."
    assert f"{OtherIds(ids[:MOST_LISTED])}".endswith(f", w{MOST_LISTED - 1}.")


def test_each_kind_is_found_in_a_test() -> None:
    tests = Path(__file__).parent.glob("test_doctor*.py")
    found = "".join(path.read_text("utf-8") for path in tests)
    assert [name for name in KINDS if f'"{name}"' not in found] == []


def test_members_that_are_down() -> None:
    assert [one.kind.name for one in judge_server(ServerFacts(server=replica_set(UP, ALSO_UP, ARBITER)))] == []
    (one,) = judge_server(ServerFacts(server=replica_set(UP, ALSO_UP, DOWN, majority=2)))
    assert (one.kind.name, one.kind.severity) == ("member-down", Severity.WARNING)
    assert one.sentence == "Member c:1 of the replica set is in state (not reachable/healthy)."


def test_arbiter_that_elects_a_primary_but_acknowledges_no_write() -> None:
    found = [*judge_server(ServerFacts(server=replica_set(UP, DOWN, ARBITER, majority=2)))]
    assert [one.kind.name for one in found] == ["no-majority", "member-down"]
    assert found[0].sentence.startswith("Data-bearing members of the replica set that are up: 1. A majority write")


def test_replica_set_without_a_primary() -> None:
    server = replica_set(ALSO_UP, DOWN, has_primary=False, majority=2)
    found = judge(Facts(server=ServerFacts(server=server)))
    assert [one.kind.name for one in found] == ["no-primary", "member-down"]
    assert "b:1 (SECONDARY), c:1 ((not reachable/healthy))" in found[0].sentence


def test_user_who_may_not_see_the_members_and_a_direct_connection() -> None:
    found = [*judge_server(ServerFacts(server=replica_set(is_direct=True)))]
    assert [one.kind.name for one in found] == ["members-hidden", "direct-connection"]


@pytest.mark.parametrize(("version", "is_old"), [("5.0.31", True), ("6.0.0-rc1", False), ("8.2", False)])
def test_server_that_is_too_old(version: str, is_old: bool) -> None:
    found = [one.kind.name for one in judge_server(ServerFacts(server=replica_set(UP, version=version)))]
    assert found == (["old-server"] if is_old else [])


def test_clock_of_a_member() -> None:
    facts = ServerFacts(server=replica_set(UP, ALSO_UP), ahead=0.4, members_ahead={"a:1": 0.0, "b:1": 75.0})
    (one,) = judge_server(facts)
    assert (one.kind.name, one.sentence) == (
        "member-clock-off",
        "The clock of member b:1 is 75.0 s ahead of that of a:1.",
    )


@pytest.mark.parametrize(
    ("streams", "writes", "percent"),
    [
        (50, 2000.0, "80%"),
        (10, 3125.0, "25%"),
        (10, 3000.0, None),
        (50, 0.0, None),
        (50, None, None),
        (None, 2000.0, None),
    ],
)
def test_streams_beside_heavy_writes(streams: int | None, writes: float | None, percent: str | None) -> None:
    found = [*judge_server(ServerFacts(server=replica_set(UP), streams=streams, writes=writes))]
    assert [one.kind.name for one in found] == (["many-streams"] if percent else [])
    assert all(one.sentence.endswith(f"takes about {percent} of a core.") for one in found)


def test_writes_a_second_of_a_server_that_was_restarted_are_none() -> None:
    before = WriteTotals(documents=1_000, seconds=100.0)
    assert WriteTotals(documents=4_000, seconds=101.5).a_second_since(before) == 2_000
    assert WriteTotals(documents=10, seconds=100.0).a_second_since(before) == 0
    assert WriteTotals(documents=10, seconds=200.0).a_second_since(before) == 0


def test_query_that_reads_far_more_than_it_returns() -> None:
    there = Indexes(has_collection=True, present=frozenset(), renamed={})
    plans = [
        Plan(query="the look", is_served=True, examined=5_000, returned=100),
        Plan(query="the list", is_served=True, examined=100, returned=100),
    ]
    (one,) = judge_indexes(IndexFacts(database="x", collection="jobs", indexes=there, plans=plans))
    assert (one.kind.name, one.sentence) == (
        "costly-query",
        "The server reads 5000 documents to find 100 in the look.",
    )


def test_question_that_was_not_answered() -> None:
    facts = Facts(server=ServerFacts(server=replica_set(UP)), unanswered=["could not count: too slow"])
    (one,) = judge(facts)
    assert (one.kind.name, sentences(one)) == (
        "unanswered",
        ["The doctor could not check everything: could not count: too slow"],
    )
