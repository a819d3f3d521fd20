"""The dashboard as a server runs it, under a prefix. Its order is in ORDER."""

from __future__ import annotations

import json
import os
from typing import Any, Final

from pymongo import MongoClient
from starlette.applications import Starlette
from starlette.routing import Mount

from trio_monque import Monque
from trio_monque.web import allow_all, create_app

ORDER: Final = json.loads(os.environ["ORDER"])

client = MongoClient[Any](ORDER["uri"], tz_aware=True)
monque = Monque(client[ORDER["database"]], stats_cache_ttl=0)  # A test sees at once what it has written.
dashboard = create_app(monque, authorize=allow_all, environment=ORDER["environment"], filters=["meta.tenant"])
app = Starlette(routes=[Mount(ORDER["prefix"], dashboard)])
