"""The dashboard as a server runs it, under a prefix, and beside it as those see it who may only read.

Its order is in ORDER.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final

from pymongo import MongoClient
from starlette.applications import Starlette
from starlette.routing import Mount

from tests.browser.places import APP_NAME, PREFIX, READ_ONLY, READS_ONLY
from trio_monque import Monque
from trio_monque.client import bulk
from trio_monque.store.reads import queries
from trio_monque.web import ClaimRules, allow_all, create_app
from trio_monque.web.api import long_actions

ORDER: Final = json.loads(os.environ["ORDER"])

if "examined" in ORDER:  # For a test that sees how far a search has looked.
    vars(queries)["MOST_EXAMINED"] = ORDER["examined"]

if "batch" in ORDER:  # For a test that sees how far a long action is: with more jobs than this, it is a long one.
    vars(bulk)["MOST_IN_A_BATCH"] = vars(long_actions)["MOST_AT_ONCE"] = ORDER["batch"]

client = MongoClient[Any](ORDER["uri"], tz_aware=True, appname=APP_NAME)
db = client[ORDER["database"]]
monque = Monque(db, stats_cache_ttl=0)  # A test sees at once what it has written.
SHOWN: Final[dict[str, Any]] = {
    "environment": ORDER["environment"],
    "filters": ["meta.tenant"],
    "claims": {"orders": (db["orders"], ClaimRules({"done": None}))},
}
dashboard = create_app(monque, authorize=allow_all, **SHOWN)
reads_only = create_app(monque, **SHOWN)
read_only = create_app(monque, authorize=allow_all, read_only=True, **SHOWN)
mounts = [Mount(PREFIX, dashboard), Mount(READS_ONLY, reads_only), Mount(READ_ONLY, read_only)]
app = dashboard if ORDER.get("is_at_root") else Starlette(routes=mounts)
