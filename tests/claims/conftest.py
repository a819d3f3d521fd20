"""A collection with documents of a user."""

from __future__ import annotations

import pytest

from trio_monque.store.driver.types import Collection, Database


@pytest.fixture
def things(db: Database) -> Collection:
    return db["things"]
