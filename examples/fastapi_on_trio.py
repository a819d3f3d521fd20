"""A FastAPI application on trio that enqueues jobs and runs them in the same process.

Why it exists: the scheduler starts and ends with the application, and SIGTERM finishes the running jobs. It needs a
database: `trio-monque server`. Run it: `hypercorn --worker-class trio examples/fastapi_on_trio.py:app`.
"""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import trio
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from pymongo import MongoClient

from trio_monque import Monque, RunningJob, Workers, open_scheduler

client = MongoClient[Any](os.environ.get("MONGODB_URI", "mongodb://localhost:27017/?replicaSet=rs0"))
db = client.get_default_database("shop")
monque = Monque(db)
workers = Workers()


class Order(BaseModel):
    customer: str
    seconds: float = 1


@workers.register("ship", payload=Order)
async def ship(job: RunningJob[Order]) -> None:
    await trio.sleep(job.data.seconds)
    print(f"shipped to {job.data.customer}", flush=True)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    async with open_scheduler(db, workers) as scheduler:
        yield  # The application answers requests, and the scheduler runs jobs.
    print(scheduler.report, flush=True)


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def create_order(order: Order) -> dict[str, str]:
    job = await monque.enqueue(ship, order)
    return {"job_id": str(job.id)}


@app.get("/jobs/{job_id}")
async def read_job(job_id: str) -> dict[str, str | None]:
    job = await monque.get_job(job_id)
    if job is None:
        raise HTTPException(404, "unknown job")
    return {"status": job.status, "fail_reason": job.fail_reason}
