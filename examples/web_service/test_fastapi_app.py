"""Tests of the endpoints, on asyncio, against a database of each test's own.

Why it exists: the client of httpx calls the application in the test's event loop and without its lifespan, so the test
decides when jobs run. Run it: `pytest examples/web_service/test_fastapi_app.py`.
"""

import fastapi_app
import pytest
from httpx import ASGITransport, AsyncClient
from jobs import workers

from trio_monque import Monque
from trio_monque.testing import SchedulerOpener, drain

pytestmark = pytest.mark.anyio
SALES = {"title": "Sales", "pages": 2, "seconds_per_page": 0}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def http(monque: Monque, monkeypatch: pytest.MonkeyPatch) -> AsyncClient:
    monkeypatch.setattr(fastapi_app, "monque", monque)  # The fixture of trio_monque, instead of the real database.
    return AsyncClient(transport=ASGITransport(fastapi_app.app), base_url="http://test")


async def test_report_is_shown_before_and_after_its_job(
    http: AsyncClient, open_test_scheduler: SchedulerOpener
) -> None:
    job_id = (await http.post("/reports", json=SALES)).json()["id"]
    assert (await http.get(f"/reports/{job_id}")).json()["status"] == "pending"
    async with open_test_scheduler(workers) as scheduler:
        await drain(scheduler)
    assert (await http.get(f"/reports/{job_id}")).json()["progress"] == {"done": 2, "pages": 2}


async def test_report_is_cancelled_and_unknown_ones_are_not_found(http: AsyncClient) -> None:
    job_id = (await http.post("/reports", json=SALES)).json()["id"]
    assert (await http.delete(f"/reports/{job_id}")).json() == {"status": "cancelled"}
    assert (await http.delete("/reports/nonsense")).status_code == 404
