"""A readiness endpoint without a web framework. Run it: `python examples/health_endpoint.py`, or with a port."""

import sys
from functools import partial
from typing import Any

import trio
from pymongo import MongoClient

from trio_monque import RunningJob, Scheduler, Workers, open_scheduler
from trio_monque.embedded import embedded_mongod

PORT = int(sys.argv[1]) if len(sys.argv) > 1 else 8080
workers = Workers()


@workers.register("last")
async def last(job: RunningJob[Any]) -> None:
    job.scheduler.drain()
    await ask()


async def answer(scheduler: Scheduler, stream: trio.SocketStream) -> None:
    async with stream:
        with trio.move_on_after(5):
            await stream.receive_some(4096)
            health = scheduler.health()
            ready = health.healthy and not health.draining
            status = "200 OK" if ready else "503 Service Unavailable"
            body = "ready" if ready else "; ".join(health.reasons) or "draining"
            head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body.encode())}\r\nConnection: close\r\n\r\n"
            await stream.send_all((head + body).encode())


async def ask() -> None:
    """What a probe does."""
    async with await trio.open_tcp_stream("127.0.0.1", PORT) as stream:
        await stream.send_all(b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = b"".join([chunk async for chunk in stream]).decode()
    print(f"{received.splitlines()[0]}: {received.splitlines()[-1]}")


async def main() -> None:
    async with embedded_mongod() as server, trio.open_nursery() as nursery:
        with MongoClient[Any](server.uri) as client:
            async with open_scheduler(client.get_default_database("health"), workers) as scheduler:
                await nursery.start(partial(trio.serve_tcp, partial(answer, scheduler), PORT, host="127.0.0.1"))
                await ask()
                await scheduler.enqueue(last)
                await scheduler.wait_drained()
        nursery.cancel_scope.cancel()


trio.run(main)
