"""A client with automatic encryption, whose driver offers no raw batches: it runs jobs and finds broken documents."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from bson import ObjectId
from bson.binary import Binary
from pymongo import MongoClient
from pymongo.encryption import ClientEncryption
from pymongo.encryption_options import AutoEncryptionOpts

from trio_monque import JobFilter, Monque, NewJob, RunningJob, Workers, open_scheduler
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Database
from trio_monque.testing import drain

ALGORITHM = "AEAD_AES_256_CBC_HMAC_SHA_512-Random"


@pytest.fixture
def secret_and_db(mongod: EmbeddedServer, db: Database) -> Iterator[tuple[Binary, Database]]:
    """A value that is encrypted, and a database whose client decrypts it."""
    providers = {"local": {"key": os.urandom(96)}}
    options = AutoEncryptionOpts(providers, f"{db.name}.keys", bypass_auto_encryption=True)
    with MongoClient[Any](mongod.uri, auto_encryption_opts=options) as client:
        encryption: ClientEncryption[Any]
        with ClientEncryption(providers, f"{db.name}.keys", db.client, client.codec_options) as encryption:
            key = encryption.create_data_key("local")
            secret = encryption.encrypt("secret", ALGORITHM, key_id=key)
        yield secret, client[db.name]


@pytest.mark.parametrize("number_of_names", [1, 3])
async def test_handlers_get_decrypted_data(
    secret_and_db: tuple[Binary, Database], db: Database, number_of_names: int
) -> None:
    secret, decrypting = secret_and_db
    names = [f"name-{number}" for number in range(number_of_names)]
    found, workers = list[Any](), Workers()

    async def handle(job: RunningJob[Any]) -> None:
        found.append(job.data)

    for name in names:
        workers.register(name, handle)
    await Monque(db).enqueue_many([NewJob(name, {"value": secret}) for name in names for _ in range(3)])
    async with open_scheduler(decrypting, workers) as scheduler:
        await drain(scheduler)
    assert found == [{"value": "secret"}] * 3 * number_of_names


async def test_pages_are_decrypted_and_lead_on(secret_and_db: tuple[Binary, Database]) -> None:
    secret, db = secret_and_db
    monque = Monque(db)
    jobs = [await monque.enqueue("greet", {"value": secret}) for _ in range(3)]
    questions: list[dict[str, Any]] = [{}, {"sort": "created_at", "filter": JobFilter(name="greet")}]
    for options in questions:  # The second one is a pipeline.
        first = await monque.get_jobs_with_cursor(limit=2, **options)
        second = await monque.get_jobs_with_cursor(limit=2, cursor=first.cursor, **options)
        assert [job.id for job in (*first.jobs, *second.jobs)] == [job.id for job in jobs]
        assert {job.data["value"] for job in (*first.jobs, *second.jobs)} == {"secret"}
        assert (first.has_next_page, second.has_next_page) == (True, False)


async def test_broken_documents_are_found(secret_and_db: tuple[Binary, Database], db: Database) -> None:
    secret, decrypting = secret_and_db
    monque, broken = Monque(decrypting), ObjectId()
    await monque.enqueue("fine", {"value": secret})
    db["monque_jobs"].insert_one({"_id": broken, "name": "broken", "status": "pending", "data": secret})
    assert [found.document_id for found in await monque.get_broken_documents()] == [broken]
