"""Starlette: endpoints that enqueue a job, show its progress and cancel it.

Why it exists: the same file runs on asyncio and on trio. Run it:
`uvicorn --app-dir examples/web_service starlette_app:app`
or `hypercorn --worker-class trio examples/web_service/starlette_app.py:app`.
"""

from jobs import Report, lifespan, monque, render
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from trio_monque.errors import JobStateError


async def create(request: Request) -> JSONResponse:
    try:
        report = Report.model_validate_json(await request.body())
    except ValidationError as error:
        return JSONResponse({"error": str(error)}, 422)
    job = await monque.enqueue(render, report)
    return JSONResponse({"id": str(job.id)}, 202)


async def show(request: Request) -> JSONResponse:
    job = await monque.get_job(request.path_params["job_id"])
    if job is None:
        return JSONResponse({"error": "unknown report"}, 404)
    return JSONResponse({"status": job.status, "progress": job.progress, "fail_reason": job.fail_reason})


async def cancel(request: Request) -> JSONResponse:
    try:
        job = await monque.cancel_job(request.path_params["job_id"])
    except JobStateError as error:  # It has ended.
        return JSONResponse({"error": str(error)}, 409)
    if job is None:
        return JSONResponse({"error": "unknown report"}, 404)
    return JSONResponse({"status": job.status}, 202)


app = Starlette(
    routes=[
        Route("/reports", create, methods=["POST"]),
        Route("/reports/{job_id}", show),
        Route("/reports/{job_id}", cancel, methods=["DELETE"]),
    ],
    lifespan=lifespan,
)
