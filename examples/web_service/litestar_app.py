"""Litestar: endpoints that enqueue a job, show its progress and cancel it.

Why it exists: the same file runs on asyncio and on trio. Run it:
`uvicorn --app-dir examples/web_service litestar_app:app`
or `hypercorn --worker-class trio examples/web_service/litestar_app.py:app`.
"""

from typing import Any

from jobs import Report, lifespan, monque, render
from litestar import Litestar, delete, get, post
from litestar.exceptions import HTTPException, NotFoundException

from trio_monque.errors import JobStateError


@post("/reports", status_code=202)
async def create(data: Report) -> dict[str, str]:
    job = await monque.enqueue(render, data)
    return {"id": str(job.id)}


@get("/reports/{job_id:str}")
async def show(job_id: str) -> dict[str, Any]:
    job = await monque.get_job(job_id)
    if job is None:
        raise NotFoundException("unknown report")
    return {"status": job.status, "progress": job.progress, "fail_reason": job.fail_reason}


@delete("/reports/{job_id:str}", status_code=202)
async def cancel(job_id: str) -> dict[str, str]:
    try:
        job = await monque.cancel_job(job_id)
    except JobStateError as error:  # It has ended.
        raise HTTPException(str(error), status_code=409) from error
    if job is None:
        raise NotFoundException("unknown report")
    return {"status": job.status}


app = Litestar([create, show, cancel], lifespan=[lifespan])
