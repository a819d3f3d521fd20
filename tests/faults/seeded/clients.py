"""What clients do: they enqueue, in every way that there is, and manage jobs by hand; and write down the answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from random import Random
from typing import Any

import trio
from bson import ObjectId

from trio_monque import Monque, NewJob
from trio_monque.errors import JobStateError, MonqueConnectionError, PartialEnqueueError
from trio_monque.store.driver.types import Database
from trio_monque.testing import now

from .plan import EVERY_MINUTE, NAMES, Action
from .records import Played, Request

SENT_BEFORE = timedelta(seconds=61)
"""A job is deleted only so long after its enqueue was answered: a sending of it that was lost is applied by then.

One that is applied after the deletion brings the job back. That is a published limit.
"""


class Clients:
    """They know the jobs that they have enqueued."""

    def __init__(self, played: Played, db: Database) -> None:
        self._played = played
        self._db = db
        self._known: dict[ObjectId, datetime] = {}
        self._numbers = count()

    async def act(self, client: Monque, action: Action) -> None:
        await trio.sleep_until(action.at)
        what, chance = action.what, Random(action.choice)
        match what:
            case "cancel" | "retry" | "reschedule" | "delete":
                if managed := self._managed(what):
                    await self._manage(client, what, chance.choice(managed[-6:]), chance)
            case "many":
                await self._enqueue_many(client, chance)
            case "transaction":
                await self._enqueue_in_transaction(client, chance)
            case _:
                await self.enqueue(client, what, chance.choice(NAMES), chance)

    def _managed(self, what: str) -> list[ObjectId]:
        least = SENT_BEFORE if what == "delete" else timedelta(0)
        return [job_id for job_id, since in self._known.items() if now() - since >= least]

    def _asked(self, what: str, name: str = "", key: str | None = None, prefix: str = "") -> Request:
        request = Request(what, now(), f"{prefix}{next(self._numbers)}", name, key)
        self._played.requests.append(request)
        return request

    async def _answered(self, request: Request, ask: Callable[[], Any]) -> Any:
        try:
            answer = await ask()
        except MonqueConnectionError as error:
            request.answer = "unknown" if error.unknown_outcome else "no"
        except JobStateError:
            request.answer = "no"
        else:
            request.answer = "yes"
            return answer
        finally:
            request.until = now()
            self._played.write("client", f"{request.what} {request.answer}", request.job, detail=request.marker)

    async def enqueue(self, client: Monque, what: str, name: str, chance: Random) -> None:
        key = f"key {chance.randrange(2)}" if what in ("unique", "schedule") else None
        request = self._asked(what, name, key, prefix="poison " if what == "poison" else "")
        data = {"marker": request.marker}
        options: dict[str, Any] = {}
        if chance.random() < 0.3:
            options["max_attempts"] = chance.choice((1, 2))
        if what == "delayed":
            options["delay"] = chance.choice((1.0, chance.uniform(0, 40)))
        if what == "schedule":
            key = request.key if chance.random() < 0.7 else None
            request.key = key
            ask = partial(
                client.schedule,
                EVERY_MINUTE,
                name,
                data,
                unique_key=key,
                on_exhausted=chance.choice(("continue", "fail")),
                on_conflict=chance.choice(("keep", "update")),
            )
        else:
            ask = partial(client.enqueue, name, data, unique_key=key, **options)
        job = await self._answered(request, ask)
        if job is not None:
            request.job = job.id
            self._known.setdefault(job.id, now())

    async def _enqueue_many(self, client: Monque, chance: Random) -> None:
        asked = [
            self._asked("many", chance.choice(NAMES), "key 0" if chance.random() < 0.2 else None)
            for _ in range(chance.randint(2, 6))
        ]
        new = [NewJob(name=one.name, data={"marker": one.marker}, unique_key=one.key) for one in asked]
        answers: dict[int, tuple[str, Any]] = dict.fromkeys(range(len(asked)), ("unknown", None))
        try:
            answers = {place: ("yes", job.id) for place, job in enumerate(await client.enqueue_many(new))}
        except PartialEnqueueError as error:
            for place in answers:
                if place in error.enqueued:
                    answers[place] = ("yes", ObjectId(error.enqueued[place]))
                elif place not in error.unknown:
                    answers[place] = ("no", None)
        except MonqueConnectionError as error:
            if not error.unknown_outcome:
                answers = dict.fromkeys(answers, ("no", None))
        for one, (answer, job_id) in zip(asked, answers.values(), strict=True):
            one.answer, one.job, one.until = answer, job_id, now()
            self._played.write("client", f"many {answer}", job_id, detail=one.marker)
            if job_id is not None:
                self._known.setdefault(job_id, now())

    async def _enqueue_in_transaction(self, client: Monque, chance: Random) -> None:
        """Committed or not; no other client writes what it writes."""
        request = self._asked("transaction", chance.choice(NAMES))
        is_kept = chance.random() < 0.7
        with self._db.client.start_session() as session:
            session.start_transaction()
            ask = partial(client.enqueue, request.name, {"marker": request.marker}, session=session)
            job = await self._answered(request, ask)
            if job is None or not is_kept:
                session.abort_transaction()
                request.answer = "no"
                return
            session.commit_transaction()
        request.job = job.id
        self._known.setdefault(job.id, now())

    async def _manage(self, client: Monque, what: str, job_id: ObjectId, chance: Random) -> None:
        request = self._asked(what)
        request.job = job_id
        ask: Callable[[], Awaitable[object]]
        match what:
            case "cancel":
                ask = partial(client.cancel_job, job_id)
            case "retry":
                ask = partial(client.retry_job, job_id)
            case "delete":
                ask = partial(client.delete_job, job_id)
            case _:
                ask = partial(client.reschedule_job, job_id, now() + timedelta(seconds=chance.choice((0, 5, 30))))
        await self._answered(request, ask)
