"""A third kind of work: an outbox, whose messages are claimed, delivered and deleted. Options, source, settlement."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trio_monque.client.event_delivery import EventDelivery
from trio_monque.client.server_time import ServerTime
from trio_monque.engine.demand import ClaimState, ClaimTraits, Demand, Granted
from trio_monque.engine.run import Run
from trio_monque.engine.run_end import RunEnd
from trio_monque.engine.source import Control, Sources
from trio_monque.events import Event
from trio_monque.host.claim_answers import Taken, Taking
from trio_monque.host.host import Host, Life
from trio_monque.host.log_lines_of_jobs_and_documents import HostEnd, Reporter
from trio_monque.host.one_group import GROUP, NamesNoItems, is_transient, one_group_host
from trio_monque.log import logger_of
from trio_monque.observations import Sighting
from trio_monque.options_and_defaults import HostOptions
from trio_monque.store.driver.database_threads import Channel, DatabaseThreads
from trio_monque.store.driver.types import Collection, Database

Message = dict[str, Any]
Deliver = Callable[[Run[Message]], Awaitable[object]]
Delivery = tuple[Message, bool]
Counts = Mapping[str, int]
FREE = {"$set": {"by": None}}


@dataclass(frozen=True, slots=True)
class MessageDelivered(Event):
    text: str


class OutboxReporter(Reporter[Message, Delivery, Message, Counts]):
    delivered = 0

    def run_settled(self, settlement: Delivery) -> None:
        if settlement[1]:
            self.delivered += 1
            self.event_delivery.emit(MessageDelivered(settlement[0]["text"]))

    def report(self, end: HostEnd[Message]) -> Counts:
        return {"delivered": self.delivered, "unfinished": len(end.unfinished)}

    def counts(self, report: Counts) -> Counts:
        return report


class OutboxSource(NamesNoItems):
    """All parts of the port in one object. In the database, `by` is the token of a message's claim, or None."""

    def __init__(self, outbox: Collection, deliver: Deliver) -> None:
        self.collection, self.operation_timeout = outbox, HostOptions.operation_timeout
        self.db_threads, self.execute = DatabaseThreads(), deliver
        self.taking = Taking(self.db_threads, ServerTime(self), self, lease=15.0)

    def connect(
        self, control: Control[Message, Delivery]
    ) -> Sources[Message, Delivery, Sequence[Delivery], Message, Message]:
        self.control = control
        return Sources(
            claims=self,
            runs=self,
            settlements=self,
            renewals=self,
            rescues=self,
            orphans=self.taking,
            is_transient=is_transient,
        )

    def traits_of(self, claim: Message) -> ClaimTraits:
        return ClaimTraits(claim["_id"], GROUP)

    async def claim(self, demand: Demand) -> Granted[Message]:
        token = secrets.token_hex(8)
        return await self.taking.take(lambda: self.take_messages(demand.total, token), token, demand.total)

    def take_messages(self, number: int, token: str) -> Taken[Message]:
        ids = [one["_id"] for one in self.collection.find({"by": None}, {"_id": 1}).limit(number)]
        self.collection.update_many({"_id": {"$in": ids}, "by": None}, {"$set": {"by": token, "beat": 0}})
        return Taken(self.renewed(token))

    def renewed(self, token: str) -> Sequence[Message]:
        self.collection.update_many({"by": token}, {"$inc": {"beat": 1}})
        return list(self.collection.find({"by": token}))

    def resolving(self, token: str) -> Callable[[], Sequence[Message]]:
        return lambda: self.renewed(token)

    def release(self, token: str, held: Sequence[Message], now: datetime) -> int:
        orphaned = {"by": token, "_id": {"$nin": [one["_id"] for one in held]}}
        return self.collection.update_many(orphaned, FREE).modified_count

    def released(self) -> None:
        self.control.post(self.control.look)

    def conclude(self, claim: Message, end: RunEnd) -> Delivery:
        return claim, end.has_succeeded

    async def prepare(self, settlements: Sequence[Delivery]) -> Sequence[Delivery]:
        return settlements

    async def settle(self, batch: Sequence[Delivery]) -> Sequence[bool | None]:
        return await self.db_threads.call(lambda: [self.end(*one) for one in batch], channel=Channel.RENEWALS)

    def end(self, message: Message, is_delivered: bool) -> bool:
        fence = {"_id": message["_id"], "by": message["by"]}
        if is_delivered:
            return bool(self.collection.delete_one(fence).deleted_count)
        return bool(self.collection.update_one(fence, FREE).matched_count)

    async def renew(self, claims: Sequence[Message]) -> Sequence[ClaimState]:
        tokens = {one["by"] for one in claims}
        found = await self.db_threads.call(lambda: [*map(self.renewed, tokens)], channel=Channel.RENEWALS)
        held = {one["_id"] for messages in found for one in messages}
        return [ClaimState.HELD if one["_id"] in held else ClaimState.LOST for one in claims]

    async def observe(self, held: Sequence[Message]) -> Sequence[Sighting[Message]]:
        ours = [None, *(one["by"] for one in held)]
        found = await self.db_threads.call(lambda: list(self.collection.find({"by": {"$nin": ours}})))
        return [Sighting(one, one["_id"], (one["by"], one["beat"]), lease=15.0) for one in found]

    async def rescue(self, dead: Sequence[Message]) -> Sequence[Message]:
        free = self.collection.update_one
        return await self.db_threads.call(lambda: [one for one in dead if free(one, FREE).matched_count])

    def rescue_abandoned(self) -> None:
        """Do nothing: the next look finds what is free."""


def outbox_host(db: Database, deliver: Deliver, listener: Callable[[MessageDelivered], None]) -> Host[Message, Counts]:
    events, source = EventDelivery(), OutboxSource(db["outbox"], deliver)
    events.add_all({MessageDelivered: listener})
    reporter = OutboxReporter(events, logger_of("outbox"), "outbox", "message", "one")
    life = Life(name="outbox", get_ready=lambda: source.observe(()), described=lambda: (db.name, "delivers messages"))
    options = HostOptions(poll_interval=0.05, heartbeat_interval=5)
    return one_group_host(source.connect, reporter, options, life, concurrency=2)
