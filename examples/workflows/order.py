"""An order as one function: reserve, then charge and pack side by side; if one of them fails, undo what was done.

Why it exists: it shows a job nursery (structured concurrency across machines) that survives its process. The program
kills the worker process three times, at the lines marked KILL, and the order ends as if nothing had happened. Run it:
`python examples/workflows/order.py`.
"""

import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

import trio
from pymongo import MongoClient

from trio_monque import Discard, JobNurseryError, Monque, RunningJob, Workers, open_job_nursery, run_scheduler
from trio_monque.embedded import embedded_mongod


@dataclass
class Order:
    number: int
    card: str


workers = Workers()


@workers.register("order", payload=Order, store_result=True)
async def place_order(job: RunningJob[Order]) -> str:
    order = job.data
    try:
        async with open_job_nursery(job, key="place") as nursery:
            shelf = await nursery.run(reserve, order)
            payment = await nursery.start(charge, order)
            parcel = await nursery.start(pack, order)
    except JobNurseryError as failed:
        async with open_job_nursery(job, key="undo") as nursery:
            await nursery.start(undo, order)
        return f"refused: {failed.reason}"
    return f"{parcel.result} from {shelf}, {payment.result}"


@workers.register("reserve", payload=Order)
async def reserve(job: RunningJob[Order]) -> str:
    await work("reserve", job.data)  # KILL
    return f"shelf {job.data.number % 7}"


@workers.register("charge", payload=Order)
async def charge(job: RunningJob[Order]) -> str:
    if job.data.card == "expired":
        raise Discard("the card has expired")
    await work("charge", job.data)
    return f"payment {job.data.number}"


@workers.register("pack", payload=Order)
async def pack(job: RunningJob[Order]) -> str:
    await work("pack", job.data)  # KILL
    return f"parcel {job.data.number}"


@workers.register("undo", payload=Order)
async def undo(job: RunningJob[Order]) -> None:
    await work("undo", job.data)  # KILL


async def work(what: str, order: Order) -> None:
    """Do it, which takes a moment. Whatever it is, it can happen twice: a killed process has done a part of it."""
    print(what, order.number, flush=True)
    await trio.sleep(0.5)


KILLS = ["reserve 1", "pack 1", "undo 2"]


def main() -> None:
    with embedded_mongod() as server, MongoClient[Any](server.uri, tz_aware=True) as client:
        monque = Monque(client.get_default_database("shop")).sync
        orders = [monque.enqueue(place_order, Order(1, "valid")), monque.enqueue(place_order, Order(2, "expired"))]
        started, kills = Counter[str](), list(KILLS)
        while True:
            command = [sys.executable, __file__, server.uri]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
                assert worker.stdout is not None
                for line in worker.stdout:
                    started[line.strip()] += 1
                    if line.strip() in kills:
                        kills.remove(line.strip())
                        worker.kill()
                        print(f"killed the worker process in: {line.strip()}")
                        break
                    if not kills:
                        for order in monque.wait_jobs(orders):
                            print(f"order {order.data['number']}: {order.result}")
                        worker.kill()
                        print(f"undone: {sorted(one for one in started if 'undo' in one)}")
                        return


if __name__ == "__main__":
    if len(sys.argv) > 1:
        database = MongoClient[Any](sys.argv[1], tz_aware=True).get_default_database("shop")
        trio.run(lambda: run_scheduler(database, workers, heartbeat_interval=0.5, cleanup_timeout=0.2))
    else:
        main()
