"""Fixtures of the tests of transactions."""

from __future__ import annotations

import pytest

from trio_monque.store.driver.types import Collection, Database


@pytest.fixture
def accounts(db: Database) -> Collection:
    """Made before: two first writes to a new collection would conflict."""
    db.accounts.insert_one({"_id": "a", "balance": 0})
    return db.accounts
