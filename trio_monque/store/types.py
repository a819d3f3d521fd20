"""The driver's types, as the other rooms may name them."""

from __future__ import annotations

from typing import Any

from bson import ObjectId
from pymongo import MongoClient as _MongoClient
from pymongo.client_session import ClientSession
from pymongo.collection import Collection as _Collection
from pymongo.database import Database as _Database

Database = _Database[Any]
Collection = _Collection[Any]
MongoClient = _MongoClient[Any]

__all__ = ["ClientSession", "Collection", "Database", "MongoClient", "ObjectId"]
