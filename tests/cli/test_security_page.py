"""The roles of the page on security, on a server with access control: each is enough, and needs all that it has."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import pytest

from tests.support.authorized import AuthorizedServer, authorized_server
from tests.support.pages import DOCS
from tests.support.programs import fenced_blocks
from tests.support.store import handle
from trio_monque.cli.program import run_program
from trio_monque.store.driver.types import Database
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs.change_stream import open_watch
from trio_monque.store.reads.diagnosis.streams import open_streams

from . import rights_scenarios as scenarios

Scenario = Callable[[Database, str], object]
Role = dict[str, Any]

JOBS: Final = {"db": "shop", "collection": "monque_jobs"}

SCENARIOS: Final[Mapping[str, Scenario]] = {
    "shopWorker": scenarios.runs_jobs,
    "shopProducer": scenarios.enqueues,
    "shopObserver": scenarios.observes,
    "shopOperator": scenarios.operates,
    "shopDoctor": scenarios.examines,
}

NEED_JOBS: Final = (
    scenarios.observes,
    scenarios.observes_by_commands,
    scenarios.operates,
    scenarios.operates_by_commands,
    scenarios.observes_over_http,
    scenarios.operates_over_http,
    scenarios.examines,
)


def roles() -> Mapping[str, Role]:
    blocks = "".join(fenced_blocks(DOCS / "how-to/security.md", "javascript"))
    found = [json.loads(one) for one in re.findall(r"createRole\((\{.*?^\})\)", blocks, re.MULTILINE | re.DOTALL)]
    return {role["role"]: role for role in found}


def without(role: Role, place: int, action: str) -> Role:
    """The role without one action of one of its privileges."""
    privileges = [
        {**one, "actions": [other for other in one["actions"] if (number, other) != (place, action)]}
        for number, one in enumerate(role["privileges"])
    ]
    return {**role, "privileges": [one for one in privileges if one["actions"]]}


def of_polling(role: Role) -> Role:
    """The worker's role without the privilege for the change stream, as the page tells it."""
    *others, stream = role["privileges"]
    assert (stream["resource"], stream["actions"]) == ({"db": "shop", "collection": ""}, ["find", "changeStream"])
    collections = [one for one in others if one["resource"] != stream["resource"]]
    of_database = [one for one in others if one["resource"] == stream["resource"]]
    return {
        **role,
        "privileges": [{**one, "actions": ["find", *one["actions"]]} for one in collections] + of_database,
    }


def with_remove(role: Role) -> Role:
    """The worker's role with what retention needs, as the page tells it."""
    return {**role, "privileges": [*role["privileges"], {"resource": JOBS, "actions": ["remove"]}]}


@pytest.fixture(scope="module")
def server() -> Iterator[AuthorizedServer]:
    with authorized_server() as one:
        yield one


@pytest.fixture
def refused(server: AuthorizedServer) -> Iterator[Callable[[Role, Scenario], list[str]]]:
    """What a user with the role is refused. The database has jobs, except for those who enqueue."""

    def run(role: Role, scenario: Scenario) -> list[str]:
        if scenario in NEED_JOBS:
            scenarios.enqueues(server.root["shop"], "")
        return scenarios.refused(server.user_with(role, "shop"), scenario)

    yield run
    server.root.drop_database("shop")
    for one in ("shop", "admin"):
        server.root[one].command("dropAllRolesFromDatabase")
    server.root["shop"].command("dropAllUsersFromDatabase")


def test_page_has_a_role_for_each_kind_of_program() -> None:
    assert list(roles()) == list(SCENARIOS)


@pytest.mark.full
@pytest.mark.parametrize("name", SCENARIOS)
def test_role_is_enough(refused: Callable[[Role, Scenario], list[str]], name: str) -> None:
    assert refused(roles()[name], SCENARIOS[name]) == []


ACTIONS: Final = [
    pytest.param(name, place, action, id=f"{name}-{place}-{action}")
    for name, role in roles().items()
    for place, privilege in enumerate(role["privileges"])
    for action in privilege["actions"]
]


@pytest.mark.full
@pytest.mark.parametrize(("name", "place", "action"), ACTIONS)
def test_each_action_of_a_role_is_needed(
    refused: Callable[[Role, Scenario], list[str]], name: str, place: int, action: str
) -> None:
    assert refused(without(roles()[name], place, action), SCENARIOS[name]) != []


@pytest.mark.full
def test_observer_and_operator_may_use_the_commands_that_the_page_names(
    refused: Callable[[Role, Scenario], list[str]],
) -> None:
    assert refused(roles()["shopObserver"], scenarios.observes_by_commands) == []
    assert refused(roles()["shopOperator"], scenarios.operates_by_commands) == []


@pytest.mark.full
def test_observer_and_operator_are_enough_for_what_the_http_api_shows_and_changes(
    refused: Callable[[Role, Scenario], list[str]],
) -> None:
    assert refused(roles()["shopObserver"], scenarios.observes_over_http) == []
    assert refused(roles()["shopOperator"], scenarios.operates_over_http) == []


@pytest.mark.full
def test_worker_that_polls_needs_no_right_to_the_whole_database(
    refused: Callable[[Role, Scenario], list[str]],
) -> None:
    polls = partial(scenarios.runs_jobs, change_stream=False)
    assert refused(of_polling(roles()["shopWorker"]), polls) == []


def test_doctor_that_may_not_ask_for_the_cursors_of_others_counts_those_of_its_user(
    server: AuthorizedServer, refused: Callable[[Role, Scenario], list[str]]
) -> None:
    seen: list[int | None] = []

    def count(database: Database, uri: str) -> None:
        jobs = JobCollection.of(database, "monque_jobs", write_concern="majority", operation_timeout=10.0)
        watch = open_watch(jobs, "mine")
        try:
            seen.append(open_streams(jobs))
        finally:
            watch.close()

    watch = open_watch(handle(server.root["shop"]), "of another")
    try:
        assert refused(roles()["shopDoctor"], count) == []
        without_inprog = without(roles()["shopDoctor"], 1, "inprog")
        assert [one.partition(":")[0] for one in refused({**without_inprog, "role": "less"}, count)] == ["aggregate"]
    finally:
        watch.close()
    assert seen == [2, 1]


def test_worker_that_may_not_list_indexes_ends_jobs_that_were_not_started_in_time(
    refused: Callable[[Role, Scenario], list[str]],
) -> None:
    role = without(roles()["shopWorker"], 0, "listIndexes")
    found = refused(role, scenarios.cancels_what_was_not_started_in_time)
    assert all(one.startswith("listIndexes:") for one in found)


# Two tests, as a scheduler that is cut short keeps the lock of retention: another one would not try to delete.
@pytest.mark.full
def test_retention_with_the_right_to_remove_is_refused_nothing(refused: Callable[[Role, Scenario], list[str]]) -> None:
    assert refused(with_remove(roles()["shopWorker"]), scenarios.deletes_ended_jobs) == []


@pytest.mark.full
def test_retention_needs_the_right_to_remove(refused: Callable[[Role, Scenario], list[str]]) -> None:
    assert any(one.startswith("delete:") for one in refused(roles()["shopWorker"], scenarios.deletes_ended_jobs))


@pytest.mark.full
def test_program_without_unique_keys_and_schedules_needs_only_to_insert(
    refused: Callable[[Role, Scenario], list[str]],
) -> None:
    role = {"role": "inserts", "privileges": [{"resource": JOBS, "actions": ["insert"]}], "roles": []}
    # It may not look whether an instance runs the name, and asks for that a few times.
    found = refused(role, scenarios.only_inserts)
    assert [one for one in found if "monque_jobs.instances" not in one] == []
    assert len(found) <= 3


@pytest.mark.full
def test_program_that_waits_for_jobs_needs_the_change_stream(refused: Callable[[Role, Scenario], list[str]]) -> None:
    producer, stream = roles()["shopProducer"], roles()["shopWorker"]["privileges"][-1]
    assert refused({**producer, "privileges": [*producer["privileges"], stream]}, scenarios.waits) == []
    found = refused({**producer, "role": "other"}, scenarios.waits)
    assert found
    assert all(one.startswith("aggregate:") for one in found)


@pytest.mark.full
@pytest.mark.parametrize("action", [None, "listIndexes", "createIndex", "dropIndex"])
@pytest.mark.usefixtures("refused")
def test_command_for_indexes_needs_three_actions(server: AuthorizedServer, action: str | None) -> None:
    scenarios.enqueues(server.root["shop"], "")
    jobs = server.root["shop"]["monque_jobs"]
    jobs.create_index("surplus")
    jobs.drop_index("trio_monque_created")
    privilege = {"resource": JOBS, "actions": ["listIndexes", "createIndex", "dropIndex"]}
    role = {"role": "indexes", "privileges": [privilege], "roles": []}
    uri = server.user_with(role if action is None else without(role, 0, action), "shop")
    command = ["indexes", "--create", "--drop-surplus", "--yes", "--uri", uri]
    assert run_program(command) == (0 if action is None else 2)


@pytest.mark.full
@pytest.mark.parametrize("action", [None, "find", "update", "createIndex"])
def test_claims_on_a_collection_need_three_actions(
    server: AuthorizedServer, refused: Callable[[Role, Scenario], list[str]], action: str | None
) -> None:
    server.root["shop"]["messages"].insert_many([{"status": "new", "fails": fails} for fails in (False, True)])
    privilege = {
        "resource": {"db": "shop", "collection": "messages"},
        "actions": ["find", "update", "createIndex"],
    }
    role = {"role": "claims", "privileges": [privilege], "roles": []}
    found = refused(role if action is None else without(role, 0, action), scenarios.claims_documents)
    assert bool(found) == (action is not None)
