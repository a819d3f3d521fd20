"""The database of a command line, from a connection string."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.support.standalone import standalone_server
from trio_monque.store.driver.connection import open_database


@pytest.mark.full
def test_client_is_closed_although_its_server_is_gone() -> None:
    """The driver would look for the server, to end its sessions there: here for ten minutes."""
    with ExitStack() as database, ExitStack() as server:
        uri = server.enter_context(standalone_server())
        shop = database.enter_context(open_database(f"{uri}?serverSelectionTimeoutMS=600000", "shop"))
        shop["orders"].insert_one({})
        server.close()
        database.close()
