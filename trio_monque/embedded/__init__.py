"""A private MongoDB server for development and tests: a real `mongod` that ends with its scope."""

from .scope import EmbeddedMongod, embedded_mongod
from .server import EmbeddedMember, EmbeddedServer

__all__ = ["EmbeddedMember", "EmbeddedMongod", "EmbeddedServer", "embedded_mongod"]
