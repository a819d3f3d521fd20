"""Three members: a set that is whole at once, and that fails over."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pymongo
import pytest
from pymongo import WriteConcern

from trio_monque.embedded import EmbeddedServer, embedded_mongod
from trio_monque.errors import MonqueConnectionError

Client = pymongo.MongoClient[dict[str, object]]


@pytest.fixture(scope="module")
def three() -> Iterator[EmbeddedServer]:
    """Three members, for all tests of this file."""
    with embedded_mongod(members=3) as server:
        yield server
    assert server.folder is not None
    assert not server.folder.exists()


@pytest.fixture
def client(three: EmbeddedServer) -> Iterator[Client]:
    """A client of the whole set."""
    with Client(three.uri, serverSelectionTimeoutMS=10_000) as client:
        yield client


def primary_port(client: Client) -> int:
    # A command, because the client's own view may be from before an election.
    client["failover"]["jobs"].insert_one({})
    assert client.primary is not None
    return client.primary[1]


@pytest.mark.full
def test_set_is_whole_when_the_start_returns(three: EmbeddedServer, client: Client) -> None:
    states = [member["stateStr"] for member in client.admin.command("replSetGetStatus")["members"]]
    assert sorted(states) == ["PRIMARY", "SECONDARY", "SECONDARY"]
    everywhere = client["failover"].get_collection("jobs", write_concern=WriteConcern(w=3, wtimeout=10_000))
    everywhere.insert_one({})
    assert len({(member.port, member.pid, member.folder) for member in three.members}) == 3


@pytest.mark.full
def test_writes_wait_for_the_majority_by_default(client: Client) -> None:
    concern = client.admin.command("getDefaultRWConcern")["defaultWriteConcern"]
    assert concern["w"] == "majority"


@pytest.mark.full
def test_primary_that_steps_down_is_followed_by_another(three: EmbeddedServer, client: Client) -> None:
    before = primary_port(client)
    three.step_down(seconds=10)
    assert primary_port(client) != before


def test_server_of_the_environment_is_not_made_to_step_down(mongod: EmbeddedServer) -> None:
    with pytest.raises(MonqueConnectionError, match="no member"):
        EmbeddedServer(mongod.uri).step_down()


@pytest.mark.full
def test_kept_set_comes_back_on_other_ports(tmp_path: Path) -> None:
    with embedded_mongod(members=3, folder=tmp_path) as first, Client(first.uri) as client:
        client["kept"]["jobs"].insert_one({"_id": "first run"})
    with embedded_mongod(members=3, folder=tmp_path) as second, Client(second.uri) as client:
        assert {member.port for member in second.members} != {member.port for member in first.members}
        assert [job["_id"] for job in client["kept"]["jobs"].find()] == ["first run"]


# The last, because it leaves two members to the set that all tests here share, one of them stopped.
@pytest.mark.full
def test_set_goes_on_without_a_killed_primary(three: EmbeddedServer, client: Client) -> None:
    ports = [member.port for member in three.members]
    killed = ports.index(primary_port(client))
    os.kill(three.members[killed].pid, signal.SIGKILL)
    assert three.wait_exited(killed, timeout=10)
    assert primary_port(client) != ports[killed]
    client.close()  # Later it would wait half a minute for the member that is stopped next.
    os.kill(three.members[killed - 1].pid, signal.SIGSTOP)
