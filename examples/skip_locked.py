"""`SELECT ... FOR UPDATE SKIP LOCKED` for documents: four processes locate 200 addresses, and one of them is killed.

Why it exists: whoever has the documents already needs no second collection to work through them. The service that knows
where an address is, is a stand-in on 127.0.0.1, and fails as such services do. What it answered and what the documents
say is the proof that each was located exactly once; no worker is asked. Run it: `python examples/skip_locked.py`.
"""

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import trio
from pymongo import MongoClient
from pymongo.collection import Collection

from trio_monque import Claim, run_claims
from trio_monque.claims import create_claim_index, dead_letters
from trio_monque.embedded import embedded_mongod

UNLOCATED = {"location": None}  # The result makes it false: what has been located is not claimed again.
STREETS, TOWNS = ("Mill Lane", "High Street", "Station Road", "Park Avenue"), ("Ashford", "Millbrook", "Newtown")


# --- A worker process ---


async def locate(port: int, claim: Claim[Any]) -> None:
    request = f"GET /?address={quote(claim.document['address'])}&pid={os.getpid()} HTTP/1.0\r\n\r\n"
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(request.encode())
        head, _, body = b"".join([chunk async for chunk in stream]).decode().partition("\r\n\r\n")
    status = head.split()[1]
    if status != "200":
        raise OSError(f"the service answered {status}")  # A failed attempt: another one after the backoff.
    # The result and the unlocking in one write, which only the holder of the lock can make.
    await claim.finish({"$set": json.loads(body), "$inc": {"times_located": 1}})


async def work(uri: str, port: int) -> None:
    with MongoClient[Any](uri) as client:
        messages = client.get_default_database("example")["messages"]
        await create_claim_index(messages, UNLOCATED)
        await run_claims(
            messages,
            UNLOCATED,
            partial(locate, port),
            wait=False,  # End when nothing is left: nothing held by anybody, nothing that waits for another attempt.
            concurrency=8,
            rate_limit=25,  # Runs a second of this process: the service must not be hammered.
            max_attempts=3,
            base_retry_interval=0.1,
            heartbeat_interval=2.0,  # Three of them without a renewal, and what a dead process held is free.
        )


# --- The stand-in for the service ---


class Service(ThreadingHTTPServer):
    """Of the first requests for an address it refuses some and is slow with others; number 13 it never finds."""

    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.lock = threading.Lock()
        self.asked, self.refused, self.in_hand = Counter[str](), Counter[int](), Counter[str]()
        self.located: list[tuple[str, int]] = []  # Address and asking process of each answer; its index is its number.
        self.overlapped = 0
        self.kept_waiting = Queue[tuple[str, int]]()


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        service = self.server
        assert isinstance(service, Service)
        asked = parse_qs(urlsplit(self.path).query)
        address, pid = asked["address"][0], int(asked["pid"][0])
        number = int(address.split()[0])
        with service.lock:
            service.overlapped += service.in_hand[address]
            service.in_hand[address] += 1
            service.asked[address] += 1
            is_first = service.asked[address] == 1
        if is_first and number % 20 == 0:
            service.kept_waiting.put((address, pid))
            time.sleep(0.5)
        status = 404 if number == 13 else 503 if is_first and number % 10 == 5 else 200
        with service.lock:
            service.in_hand[address] -= 1
            if status == 200:
                answer = {"location": [number / 10, -number / 10], "answer": len(service.located)}
                service.located.append((address, pid))
            else:
                answer = {}
                service.refused[status] += 1
        with suppress(ConnectionError):  # Whoever asked may be dead.
            self.send_response_only(status)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        """The program prints what matters."""


# --- The run and its proof ---


def prove(messages: Collection[Any], service: Service, killed: int) -> bool:
    """By the service and the documents. One answer more went to the killed process for what it could not write."""
    documents = list(messages.find({"location": {"$ne": None}}))
    (aside,) = trio.run(dead_letters, messages)
    assert aside.document is not None
    last = {address: number for number, (address, _) in enumerate(service.located)}
    unwritten = [pid for number, (address, pid) in enumerate(service.located) if number != last[address]]
    proven = {
        "199 documents are located": len(documents) == len(last) == 199,
        "each was written once, and is unlocked": all(d["times_located"] == 1 and "lock" not in d for d in documents),
        "each has the one answer that the service gave to a living process": (
            all(d["answer"] == last[d["address"]] for d in documents) and set(unwritten) <= {killed}
        ),
        "no address was asked for by two at a time": service.overlapped == 0,
        f"1 is a dead letter after 3 attempts ({aside.document['address']}: {aside.error})": aside.attempts == 3,
    }
    print(f"The service refused {dict(service.refused)}, and answered {len(unwritten)} times what was never written.")
    for claim, holds in proven.items():
        print(f"{'yes' if holds else 'NO!'}  {claim}")
    return all(proven.values())


def main() -> int:
    with embedded_mongod() as server, MongoClient[Any](server.uri) as client, Service() as service:
        messages = client.get_default_database("example")["messages"]
        places = [f"{number} {random.choice(STREETS)}, {random.choice(TOWNS)}" for number in range(200)]
        messages.insert_many([{"address": place} for place in places])
        threading.Thread(target=service.serve_forever, daemon=True).start()
        command = [sys.executable, __file__, server.uri, str(service.server_port)]
        workers: dict[int, subprocess.Popen[bytes]] = {}
        try:
            for _ in range(4):
                worker = subprocess.Popen(command, stdin=subprocess.PIPE)
                workers[worker.pid] = worker
            address, pid = service.kept_waiting.get(timeout=20)
            while len(service.located) < 50:
                address, pid = service.kept_waiting.get(timeout=20)
            workers[pid].kill()
            print(f"Killed the process {pid} while it waited for the location of {address}.")
            ended = [worker.wait(timeout=30) for worker in workers.values() if worker.pid != pid]
            return 0 if prove(messages, service, pid) and ended == [0, 0, 0] else 1
        finally:
            for worker in workers.values():
                worker.kill()
                worker.communicate()
            service.shutdown()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        # No worker outlives the program that holds the other end of its pipe.
        threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()
        trio.run(work, sys.argv[1], int(sys.argv[2]))
    else:
        sys.exit(main())
