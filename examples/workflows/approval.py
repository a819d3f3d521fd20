"""An expense waits for its approval, for days if need be. While it waits it has no slot, and deployments do not end it.

Why it exists: it shows a wait for a person. The question is a job of its own that sleeps until its deadline (`Snooze`),
and the answer wakes it. Run it: `python examples/workflows/approval.py`.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import trio
from bson import ObjectId
from pymongo import MongoClient

from trio_monque import JobStatus, Monque, RunningJob, Snooze, Workers, open_job_nursery, open_scheduler
from trio_monque.embedded import embedded_mongod


@dataclass
class Expense:
    who: str
    amount: int


workers = Workers()
questions_send, questions_receive = trio.open_memory_channel[str](10)  # Stands for the mail.


@workers.register("approval", payload=Expense, max_attempts=20)
async def approval(job: RunningJob[Expense]) -> bool:
    answer = job.resources.find_one({"_id": job.id})
    deadline = job.created_at + timedelta(days=3)
    if answer is not None or job.now() >= deadline:
        return answer is not None and answer["yes"]
    await job.step("mail", questions_send.send, str(job.id))
    raise Snooze(until=deadline)


@workers.register("pay", payload=Expense)
async def pay(job: RunningJob[Expense]) -> str:
    return f"paid {job.data.amount} to {job.data.who}"


@workers.register("expense", payload=Expense, store_result=True)
async def expense(job: RunningJob[Expense]) -> str:
    result = "rejected"
    async with open_job_nursery(job) as nursery:
        if job.data.amount <= 100 or await nursery.run(approval, job.data):
            result = await nursery.run(pay, job.data)
    return result


async def main() -> None:
    async with embedded_mongod() as server:
        with MongoClient[Any](server.uri, tz_aware=True) as client:
            database = client.get_default_database("expenses")
            async with open_scheduler(database, workers, resources=database["answers"]) as scheduler:
                jobs = [await scheduler.enqueue(expense, Expense(who, 120)) for who in ("ada", "bob")]
                for yes in (True, False):
                    await answered(scheduler, database["answers"], await questions_receive.receive(), yes=yes)
                print(sorted([(await scheduler.wait_job(job)).result for job in jobs]))


async def answered(monque: Monque, answers: Any, job_id: str, *, yes: bool) -> None:
    """What the endpoint `POST /approvals/{job_id}` of a web service does."""
    answers.insert_one({"_id": ObjectId(job_id), "yes": yes})
    # A question that runs may have looked for the answer just before: it is woken once it sleeps.
    while (question := await monque.get_job(job_id)) and question.status is JobStatus.PROCESSING:  # noqa: ASYNC110
        await trio.sleep(0.05)
    await monque.reschedule_job(job_id, datetime.now(UTC))


if __name__ == "__main__":
    trio.run(main)
