"""The driver's types and errors, as the other rooms may name them."""

from __future__ import annotations

from typing import Any

from bson import ObjectId, Timestamp
from bson.codec_options import CodecOptions
from pymongo import IndexModel
from pymongo import MongoClient as _MongoClient
from pymongo.client_session import ClientSession
from pymongo.collection import Collection as _Collection
from pymongo.database import Database as _Database
from pymongo.errors import BulkWriteError, ConnectionFailure
from pymongo.errors import PyMongoError as DriverError

Database = _Database[Any]
Collection = _Collection[Any]
TypedCollection = _Collection
MongoClient = _MongoClient[Any]

__all__ = [
    "BulkWriteError",
    "ClientSession",
    "CodecOptions",
    "Collection",
    "ConnectionFailure",
    "Database",
    "DriverError",
    "IndexModel",
    "MongoClient",
    "ObjectId",
    "Timestamp",
    "TypedCollection",
]
