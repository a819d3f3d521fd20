"""A small application with two workers, to be tested: `examples/testing_jobs/test_orders.py` does it."""

from dataclasses import dataclass
from typing import Protocol

from trio_monque import Discard, RunningJob, Workers


@dataclass
class Charge:
    order: int
    cents: int


class CardRefusedError(Exception):
    """The bank says no, and will say no again."""


class Bank(Protocol):
    """What the workers get as `job.resources`."""

    async def charge(self, cents: int, *, reference: str) -> None: ...
    async def total(self) -> int: ...


workers = Workers()


@workers.register("charge", payload=Charge, retry_on=ConnectionError, backoff=3600, timeout=60)
async def charge(job: RunningJob[Charge]) -> None:
    bank: Bank = job.resources
    try:
        # The same reference for every attempt: a charge whose answer was lost is not made twice.
        await bank.charge(job.data.cents, reference=f"order-{job.data.order}")
    except CardRefusedError as refusal:
        await job.scheduler.enqueue("mail", {"order": job.data.order, "text": str(refusal)})
        raise Discard(str(refusal)) from refusal
    await job.scheduler.enqueue("mail", {"order": job.data.order, "text": "Thank you!"}, delay=60)


@workers.cron("0 3 * * *", "report", timezone="Europe/Berlin", store_result=True)
async def report(job: RunningJob[None]) -> int:
    bank: Bank = job.resources
    return await bank.total()
