"""A private MongoDB server for development and tests: a real `mongod` that ends with its scope."""

from .embedded_server import EmbeddedMember, EmbeddedServer
from .scope import EmbeddedMongod, embedded_mongod

__all__ = ["EmbeddedMember", "EmbeddedMongod", "EmbeddedServer", "embedded_mongod"]
