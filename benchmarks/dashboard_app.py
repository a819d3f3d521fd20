"""The application that `dashboard` measures, as a server runs it. Its order is in ORDER."""

from __future__ import annotations

import json
import os
from typing import Any

from pymongo import MongoClient

from trio_monque import Monque
from trio_monque.web import create_app

order = json.loads(os.environ["ORDER"])
client = MongoClient[Any](order["uri"], tz_aware=True)
app = create_app(Monque(client[order["database"]], **order["options"]), filters=("meta.tenant",))
