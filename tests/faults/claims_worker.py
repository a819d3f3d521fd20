"""A process that works through documents by `run_claims`, to be killed, frozen and cut off. Started by `processes.py`.

Its handler writes down what happens to it, by itself, whatever the library believes: of each run, which has a number.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import trio
from pymongo import MongoClient

from tests.support.fast_driver import fast_driver
from trio_monque import Claim, run_claims
from trio_monque.errors import ClaimLostError, MonqueConnectionError
from trio_monque.events import DocumentClaimLost

from .documents import COLLECTION, WANTED
from .records import Recorder


class PlannedError(Exception):
    """A failure that is planned."""


class Handler:
    def __init__(self, recorder: Recorder, name: str) -> None:
        self._recorder = recorder
        self._name = name
        self._numbers = count(1)

    async def work(self, claim: Claim[Any]) -> None:
        write = partial(self._write, claim, next(self._numbers))
        write("start", claim.document["lock"]["token"])
        try:
            await self._work(claim, write)
        except trio.Cancelled:
            write("cancelled")
            raise
        except ClaimLostError:
            write("refused")
            raise
        except MonqueConnectionError as error:
            write("unknown", repr(error))
            raise
        except PlannedError:
            write("failed")
            raise
        except Exception as error:
            write("failed")
            write("error", repr(error))
            raise
        finally:
            write("end")

    async def _work(self, claim: Claim[Any], write: partial[None]) -> None:
        plan = claim.document["plan"]
        for _ in range(plan["steps"]):
            write("waits", str(time.monotonic() + plan["step"]))
            await trio.sleep(plan["step"])
            write("passed")
        if claim.attempt <= plan["fails"]:
            raise PlannedError
        written_by = {"by": self._name, "token": claim.document["lock"]["token"], "attempt": claim.attempt}
        write("finishes")
        await claim.finish({"$set": {"state": "done", "written_by": written_by}, "$inc": {"results": 1}})
        write("finished")

    def _write(self, claim: Claim[Any], number: int, what: str, detail: str = "") -> None:
        self._recorder.write(what, str(claim.id), number, detail)


async def run(order: dict[str, Any]) -> None:
    recorder = Recorder(Path(order["records"]), order["name"])
    # Not closed: that would wait for a frozen server.
    client: MongoClient[Any] = MongoClient(order["uri"], tz_aware=True)

    def tell_lost(event: DocumentClaimLost) -> None:
        recorder.write("lost", str(event.document_id))

    async with trio.open_nursery() as nursery:
        claims = await nursery.start(
            partial(
                run_claims,
                client[order["database"]][COLLECTION],
                WANTED,
                Handler(recorder, order["name"]).work,
                wait=False,
                instance_id=order["name"],
                listeners={DocumentClaimLost: tell_lost},
                **order["options"],
            )
        )
        recorder.write("ready")
    recorder.write("left", detail=json.dumps(asdict(claims.report), default=str))


def work(order: dict[str, Any]) -> None:
    with fast_driver():
        trio.run(run, order)
