"""What is in the world of the model: one job, two instances of ours, a Node peer, a rescuer, people and the network.

All of it is small tuples, so that millions can be compared quickly. Fields marked *ghost* belong to no actor:
the checks alone read them.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from .rules import Bounds

Status = Literal["pending", "processing", "completed", "failed", "cancelled"]
Outcome = Literal["", "success", "failure", "release", "cancel"]
Health = Literal["up", "frozen", "down"]
Phase = Literal[
    "idle",
    "looked",  # It has read a copy of the job and not yet sent its claim.
    "written",  # Its claim was applied; the answer is on its way.
    "reading back",  # Its claim was applied without pins: it asks for what it took.
    "unknown",  # The answer to its claim is lost.
    "resolving",  # The majority write is behind it, the majority read comes next.
    "running",
    "settling",  # The handler has ended; the outcome is sent until something is known of it.
    "asking",  # The outcome was not written: it reads why.
    "cancelling",  # Because of a request: `cancelled` is written instead.
]
Watch = Literal["idle", "asked", "watching", "missed", "cancelling"]

NODE: Final = "Node"


class Token(NamedTuple):
    """`claimToken`: embeds whose claim it is, and since when."""

    claimed_by: str
    locked_at: int
    number: int


class Fence(NamedTuple):
    """What names one claim, as far as a document can."""

    claimed_by: str
    locked_at: int
    claim_token: Token | None


class Document(NamedTuple):
    """The job, as a majority has it.

    Attributes:
        due: `nextRunAt` has come.
        last_heartbeat: Counts from 0 in each claim, so those of different claims coincide too.
        cancel_requested: The number of the claim that it was meant for; the real one is a date.
        data: Which version of its payload.
        schedule: Which version of its cron line; 0 for a one-off job.
        claims: *Ghost.* How many claims there were, a Node peer's too: the number of the current one.
    """

    status: Status = "pending"
    due: bool = True
    claimed_by: str = ""
    locked_at: int = 0
    claim_token: Token | None = None
    last_heartbeat: int = 0
    attempts: int = 0
    fail_count: int = 0
    rescues: int = 0
    rev: int = 0
    data: int = 0
    cancel_requested: int = 0
    schedule: int = 0
    claims: int = 0


class Copy(NamedTuple):
    """What an instance has in hand of the job. `claim` is a *ghost*: which claim it runs under."""

    attempts: int
    fail_count: int
    rescues: int
    rev: int
    data: int
    schedule: int
    claim: int = 0


class Instance(NamedTuple):
    """One scheduler instance, which has one thing to do at a time.

    Attributes:
        sent: Claims sent so far; they number its tokens.
        pinned: Its claim pinned its copy.
        lease: What it does now rests on a sending that is less than a lease ago, on its own clock.
        since: That sending came after the rescuer's present observation began.
        beaten: So did a heartbeat of its that was acknowledged.
        phantom: Its claim stands on a server that is cut off, and will be rolled back.
        disowned: Claims that it could not find and releases at every beat.
    """

    name: str
    health: Health = "up"
    phase: Phase = "idle"
    sent: int = 0
    token: Token | None = None
    copy: Copy | None = None
    pinned: bool = True
    outcome: Outcome = ""
    lease: bool = False
    since: bool = False
    beaten: bool = False
    phantom: bool = False
    disowned: tuple[Token, ...] = ()


class Rescuer(NamedTuple):
    """A reaper and its one observation.

    Attributes:
        due: Three intervals have passed without a change.
        copy: What it saw of the job, from which it decides; the ghost in it is the claim that is observed.
        excused: *Ghost.* During these the holder was dead, frozen or cut off.
    """

    watch: Watch = "idle"
    fence: Fence | None = None
    last_heartbeat: int = 0
    copy: Copy | None = None
    due: bool = False
    excused: bool = False


class LateClaim(NamedTuple):
    """A claim in the network, applied whenever it likes. Without pins where the batch's differed."""

    token: Token
    pins: Copy | None


class LateSettlement(NamedTuple):
    """An outcome in the network."""

    token: Token
    copy: Copy
    outcome: Outcome


class Budget(NamedTuple):
    """What may still happen."""

    claims: int
    faults: int
    hands: int
    beats: int
    node: int


class State(NamedTuple):
    """All there is.

    Attributes:
        node: Which claim the Node peer runs; 0 for none.
        canceller: The claim that a client read before it asks to cancel the run.
        network: What is under way and may arrive late, or never.
        last_attempt: *Ghost.* The greatest `attempt` that a handler was given.
        harm: *Ghost.* What the last move did that must never be.
    """

    document: Document
    a: Instance
    b: Instance
    budget: Budget
    node: int = 0
    rescuer: Rescuer = Rescuer()
    canceller: Fence | None = None
    network: frozenset[LateClaim | LateSettlement] = frozenset()
    last_attempt: int = 0
    harm: str = ""

    @property
    def instances(self) -> tuple[Instance, Instance]:
        return self.a, self.b

    def with_instance(self, instance: Instance) -> State:
        return self._replace(a=instance) if instance.name == self.a.name else self._replace(b=instance)


def start(bounds: Bounds) -> State:
    """A job that is due, and no instance has looked yet."""
    budget = Budget(bounds.claims, bounds.faults, bounds.hands, bounds.beats, bounds.node)
    return State(Document(schedule=1 if bounds.recurring else 0), Instance("A"), Instance("B"), budget)


def copy_of(document: Document) -> Copy:
    return Copy(
        document.attempts,
        document.fail_count,
        document.rescues,
        document.rev,
        document.data,
        document.schedule,
        document.claims,
    )


def fence_of(document: Document) -> Fence:
    return Fence(document.claimed_by, document.locked_at, document.claim_token)


def stamp_of(token: Token) -> Fence:
    return Fence(token.claimed_by, token.locked_at, token)


def is_ours(document: Document) -> bool:
    """A token that another claim left behind does not belong to the present holder."""
    token = document.claim_token
    return token is not None and token[:2] == (document.claimed_by, document.locked_at)
