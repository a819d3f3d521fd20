"""Forms a replica set of servers that listen, and waits until it is ready."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from ..error_types import EmbeddedServerError, MonqueConnectionError
from ..store.driver.member_admin import MemberAdmin

HOST = "127.0.0.1"
DEFAULT_NAME = "embedded"

# Short, so that a test of failover does not wait ten seconds for the election. All members are on
# one machine, so what a longer timeout is for (a slow network) cannot occur.
_SETTINGS = {"electionTimeoutMillis": 2_000, "heartbeatIntervalMillis": 200}
_POLL_SECONDS = 0.005
_NOTE_MS = 200


def connection_string(name: str, ports: Sequence[int]) -> str:
    """Return the URI that names all members of the set."""
    hosts = ",".join(f"{HOST}:{port}" for port in ports)
    return f"mongodb://{hosts}/?replicaSet={name}"


def form(name: str, ports: Sequence[int], check: Callable[[], None], deadline: float) -> None:
    """Form the set, or move a stored one to these ports; return when a primary and all others are ready.

    Args:
        name: The name of the set.
        ports: Where the members listen.
        check: Called between two looks; what it raises ends the waiting.
        deadline: By `time.monotonic`.

    Raises:
        EmbeddedServerError: The set was not ready in time.
    """
    with ExitStack() as stack:
        members = [stack.enter_context(MemberAdmin(HOST, port)) for port in ports]
        _configure(members[0], name, ports, check, deadline)
        _wait(lambda: _is_ready(members), check, deadline)


def step_down(ports: Sequence[int], seconds: int) -> None:
    """Make the primary step down.

    Raises:
        MonqueConnectionError: No member is primary, or it refused.
    """
    for port in ports:
        with MemberAdmin(HOST, port) as member:
            if member.is_primary():
                member.step_down(seconds)
                return
    raise MonqueConnectionError("no member of the embedded replica set is primary", transient=True)


def _configure(first: MemberAdmin, name: str, ports: Sequence[int], check: Callable[[], None], deadline: float) -> None:
    wanted = [{"_id": index, "host": f"{HOST}:{port}"} for index, port in enumerate(ports)]
    stored = first.stored_configuration()
    if stored is None:
        # Alone at first: a single member becomes primary at once, and three together wait for the election timeout.
        first.initiate({"_id": name, "members": wanted[:1], "settings": _SETTINGS})
        _wait(first.is_primary, check, deadline)
        stored = first.stored_configuration() or {}
    if [member["host"] for member in stored["members"]] != [member["host"] for member in wanted]:
        # Forced: no member listens at the stored ports any more, so there is no primary that could agree.
        moved = {**stored, "version": stored["version"] + 1, "members": wanted}
        _wait(lambda: _has_accepted(first, moved), check, deadline)


def _has_accepted(member: MemberAdmin, configuration: Mapping[str, Any]) -> bool:
    try:
        member.reconfigure(configuration)
    except MonqueConnectionError:
        # The member still loads the stored configuration in the background, and looks for itself at the stored ports.
        return False
    return True


def _is_ready(members: Sequence[MemberAdmin]) -> bool:
    try:
        primary = next((member for member in members if member.is_primary()), None)
        if primary is None:
            _hasten_election(members)
            return False
        # A new secondary begins to copy only when there is something newer than its own data, and looks for that once a
        # second. So there is a new note at every look; the last one proves that all members copy.
        primary.replicate_note(1, _NOTE_MS)
        # By each member's own view: one that does not know the primary yet would send clients to the wrong member.
        expected = ["PRIMARY"] + ["SECONDARY"] * (len(members) - 1)
        if any(sorted(member.states()) != expected for member in members):
            return False
        primary.replicate_note(len(members), _NOTE_MS)
    except MonqueConnectionError:
        return False
    return True


def _hasten_election(members: Sequence[MemberAdmin]) -> None:
    # All members are asked in turn: only one with the newest data can win, and a refusal changes nothing.
    for member in members:
        with suppress(MonqueConnectionError):
            member.step_up()
            return


def _wait(is_done: Callable[[], bool], check: Callable[[], None], deadline: float) -> None:
    while not is_done():
        check()
        if time.monotonic() > deadline:
            raise EmbeddedServerError("the embedded replica set had no primary in time")
        time.sleep(_POLL_SECONDS)
