"""Payments that are made exactly once, each with a receipt, and one report of all of them.

Why it exists: it shows how these fit together: `job.transaction`, `then`, `on_conflict="debounce"` and `wait_job`. Run
it: `python examples/payments.py`.
"""

from dataclasses import dataclass
from typing import Any

import trio
from pymongo import MongoClient
from pymongo.client_session import ClientSession

from trio_monque import Job, NewJob, RunningJob, Workers, open_scheduler
from trio_monque.embedded import embedded_mongod


@dataclass
class Payment:
    payer: str
    payee: str
    amount: int


workers = Workers()


def receipt_for(job: Job[Any]) -> NewJob | None:
    return NewJob("receipt", job.data) if job.status == "completed" else None


@workers.register("pay", payload=Payment, then=receipt_for)
async def pay(job: RunningJob[Payment]) -> None:
    def move(session: ClientSession) -> None:
        for name, amount in ((job.data.payer, -job.data.amount), (job.data.payee, job.data.amount)):
            job.resources.update_one({"_id": name}, {"$inc": {"balance": amount}}, upsert=True, session=session)

    await job.transaction(move)
    await job.scheduler.enqueue("report", unique_key="today", on_conflict="debounce", delay=1, max_wait=9)


@workers.register("receipt", payload=Payment)
async def receipt(job: RunningJob[Payment]) -> None:
    print(f"{job.data.payer} has paid {job.data.amount} to {job.data.payee}")


@workers.register("report", result=dict[str, int])
def report(job: RunningJob[None]) -> dict[str, int]:
    return {account["_id"]: account["balance"] for account in job.resources.find().sort("_id")}


async def main(uri: str) -> None:
    with MongoClient[Any](uri) as client:
        db = client.get_default_database("payments")
        async with open_scheduler(db, workers, resources=db["accounts"]) as scheduler:
            for payment in (Payment("ada", "bob", 30), Payment("bob", "eve", 10), Payment("eve", "ada", 5)):
                await scheduler.wait_job(await scheduler.enqueue(pay, payment))
            today = await scheduler.enqueue(report, unique_key="today")
            print((await scheduler.wait_job(today)).result)


if __name__ == "__main__":
    with embedded_mongod() as server:
        trio.run(main, server.uri)
