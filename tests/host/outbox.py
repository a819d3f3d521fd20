"""A third kind of work: an outbox, whose messages are claimed, delivered and deleted. Options, source, settlement."""

from __future__ import annotations

import math
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from trio_monque.client.event_delivery import EventDelivery
from trio_monque.engine.demand import ClaimState, Demand, Due, Granted, KnownItem
from trio_monque.engine.nursery import Engine
from trio_monque.engine.run import Run
from trio_monque.engine.run_end import RunEnd
from trio_monque.engine.source import Control
from trio_monque.errors import MonqueConnectionError
from trio_monque.events import Event
from trio_monque.host.host import Host, Life
from trio_monque.host.limits import engine_limits
from trio_monque.host.reporting import HostEnd, Reporter
from trio_monque.log import logger_of
from trio_monque.observations import Sighting
from trio_monque.store.database_threads import Channel, DatabaseThreads
from trio_monque.store.types import Collection, Database

Message = dict[str, Any]
Deliver = Callable[[Run[Message]], Awaitable[object]]


@dataclass(frozen=True)
class OutboxOptions:
    poll_interval: float = 0.05
    heartbeat_interval: float = 5.0
    start_timeout: float = 0.0
    shutdown_timeout: float = 5.0
    cleanup_timeout: float = 1.0
    operation_timeout: float = 5.0


@dataclass(frozen=True, eq=False)
class Delivery:
    message: Message
    is_delivered: bool


@dataclass(frozen=True, slots=True)
class MessageDelivered(Event):
    text: str


class OutboxReporter(Reporter[Message, Mapping[str, int]]):
    delivered = 0

    def run_settled(self, settlement: Delivery) -> None:
        if settlement.is_delivered:
            self.delivered += 1
            self._event_delivery.emit(MessageDelivered(settlement.message["text"]))

    def claim_lost(self, claim: Message) -> None: ...
    def runs_cut_short(self, claims: Sequence[Message]) -> None: ...
    def renewal_failed(self, error: Exception) -> None: ...
    def claims_rescued(self, rescued: Sequence[Message]) -> None: ...

    def report(self, end: HostEnd[Message]) -> Mapping[str, int]:
        return {"delivered": self.delivered, "unfinished": len(end.unfinished)}

    def counts(self, report: Mapping[str, int]) -> Mapping[str, int]:
        return report


class OutboxSource:
    def __init__(self, outbox: Collection, deliver: Deliver) -> None:
        self.outbox, self.db_threads, self.execute = outbox, DatabaseThreads(), deliver

    def attach(self, control: Control[Message, Delivery]) -> None: ...
    def key_of(self, claim: Message) -> Any:
        return claim["_id"]

    def group_of(self, claim: Message) -> str:
        return "outbox"

    def is_suspect(self, claim: Message) -> bool:
        return False

    def time_limit(self, claim: Message) -> float:
        return math.inf

    def hold_limit(self, claim: Message) -> float:
        return math.inf

    def is_transient(self, error: Exception) -> bool:
        return isinstance(error, MonqueConnectionError)

    async def next_due(self, groups: Set[str]) -> Due | None:
        return None

    def rescue_abandoned(self) -> None: ...
    def has_orphaned_claims(self) -> bool:
        return False

    async def release_orphaned_claims(self) -> None: ...
    async def claim_one(self, item: KnownItem, demand: Demand) -> NoReturn:
        raise AssertionError("no message is ever named")

    async def claim(self, demand: Demand) -> Granted[Message]:
        token = secrets.token_hex(8)
        take = partial(self.take_messages, demand.total, token)
        return Granted(await self.db_threads.hand_over(take, lambda _: self._free(token), channel=Channel.CLAIMS))

    def take_messages(self, number: int, token: str) -> list[Message]:
        ids = [one["_id"] for one in self.outbox.find({"by": None}, {"_id": 1}).limit(number)]
        self.outbox.update_many({"_id": {"$in": ids}, "by": None}, {"$set": {"by": token, "beat": 0}})
        return list(self.outbox.find({"by": token}))

    def _free(self, token: str) -> None:
        self.outbox.update_many({"by": token}, {"$set": {"by": None}})

    def conclude(self, claim: Message, end: RunEnd) -> Delivery:
        return Delivery(claim, is_delivered=end.error is None and not end.cancelled)

    async def prepare(self, settlements: Sequence[Delivery]) -> Sequence[Delivery]:
        return settlements

    async def settle(self, batch: Sequence[Delivery]) -> Sequence[bool | None]:
        return [await self.db_threads.call(partial(self._end, one), channel=Channel.RENEWALS) for one in batch]

    def _end(self, one: Delivery) -> bool:
        fence = {"_id": one.message["_id"], "by": one.message["by"]}
        if one.is_delivered:
            return bool(self.outbox.delete_one(fence).deleted_count)
        return bool(self.outbox.update_one(fence, {"$set": {"by": None}}).matched_count)

    async def renew(self, claims: Sequence[Message]) -> Sequence[ClaimState]:
        return [await self.db_threads.call(partial(self._renew, one), channel=Channel.RENEWALS) for one in claims]

    def _renew(self, one: Message) -> ClaimState:
        fence = {"_id": one["_id"], "by": one["by"]}
        return (
            ClaimState.HELD if self.outbox.update_one(fence, {"$inc": {"beat": 1}}).matched_count else ClaimState.LOST
        )

    async def observe(self, held: Sequence[Message]) -> Sequence[Sighting[Message]]:
        look = partial(self.outbox.find, {"by": {"$ne": None}})
        found = await self.db_threads.call(lambda: list(look()), channel=Channel.CLAIMS)
        ours = {one["by"] for one in held}
        return [
            Sighting(one, one["_id"], (one["by"], one["beat"]), lease=15.0) for one in found if one["by"] not in ours
        ]

    async def rescue(self, dead: Sequence[Message]) -> Sequence[Message]:
        return [one for one in dead if await self.db_threads.call(partial(self._rescue, one), channel=Channel.CLAIMS)]

    def _rescue(self, one: Message) -> bool:
        seen = {name: one[name] for name in ("_id", "by", "beat")}
        return bool(self.outbox.update_one(seen, {"$set": {"by": None}}).matched_count)


def outbox_host(db: Database, deliver: Deliver, listener: Callable[[MessageDelivered], None]) -> Host[Message, Any]:
    options, event_delivery = OutboxOptions(), EventDelivery()
    event_delivery.add_all({MessageDelivered: listener})
    source, reporter = (
        OutboxSource(db["outbox"], deliver),
        OutboxReporter(event_delivery, logger_of("outbox"), "outbox", "one"),
    )
    engine: Engine[Message, Delivery, Any, Message, Message] = Engine(
        source, reporter, engine_limits(options, concurrency=2, is_announced=False)
    )
    engine.slots.set_limit("outbox", 2)
    ping = partial(source.db_threads.call, lambda: db.command("ping"))
    life = Life(name="the outbox", get_ready=ping, described=lambda: (db.name, "delivers messages"))
    return Host(engine, event_delivery, reporter, life, start_timeout=options.start_timeout)
