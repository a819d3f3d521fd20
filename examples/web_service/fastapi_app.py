"""FastAPI: endpoints that enqueue a job, show its progress and cancel it.

Why it exists: the same file runs on asyncio and on trio. Run it:
`uvicorn --app-dir examples/web_service fastapi_app:app`
or `hypercorn --worker-class trio examples/web_service/fastapi_app.py:app`.
"""

from typing import Any

from fastapi import FastAPI, HTTPException
from jobs import Report, lifespan, monque, render

from trio_monque.errors import JobStateError

app = FastAPI(lifespan=lifespan)


@app.post("/reports", status_code=202)
async def create(report: Report) -> dict[str, str]:
    job = await monque.enqueue(render, report)
    return {"id": str(job.id)}


@app.get("/reports/{job_id}")
async def show(job_id: str) -> dict[str, Any]:
    job = await monque.get_job(job_id)
    if job is None:
        raise HTTPException(404, "unknown report")
    return {"status": job.status, "progress": job.progress, "fail_reason": job.fail_reason}


@app.delete("/reports/{job_id}", status_code=202)
async def cancel(job_id: str) -> dict[str, str]:
    try:
        job = await monque.cancel_job(job_id)
    except JobStateError as error:  # It has ended.
        raise HTTPException(409, str(error)) from error
    if job is None:
        raise HTTPException(404, "unknown report")
    return {"status": job.status}
