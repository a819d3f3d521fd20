"""The wire protocol, as far as a proxy has to know it: messages, and which request a reply belongs to."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from typing import Any, Final

import bson

Command = dict[str, Any]

_HEADER: Final = struct.Struct("<iiii")  # Length, request id, the request that is answered, kind of message.
_OP_MSG: Final = 2013


def message(connection: socket.socket) -> bytes:
    """The next one, whole; empty where the connection has ended."""
    header = _exactly(connection, _HEADER.size)
    return header and header + _exactly(connection, _HEADER.unpack(header)[0] - _HEADER.size)


def _exactly(connection: socket.socket, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        more = connection.recv(count - len(received))
        if not more:
            return b""
        received += more
    return bytes(received)


def request_id(of: bytes) -> int:
    """What a reply names that answers this message."""
    return int(_HEADER.unpack_from(of)[1])


def answers(reply: bytes) -> int:
    """The id of the request that it answers."""
    return int(_HEADER.unpack_from(reply)[2])


def reply_to(request: bytes, body: Command) -> bytes:
    """An OP_MSG that answers this message."""
    content = bytes(5) + bson.encode(body)  # No flags; a section of kind 0.
    return _HEADER.pack(_HEADER.size + len(content), 0, request_id(request), _OP_MSG) + content


def command(of: bytes) -> Command:
    """The body of an OP_MSG, with its first document sequence, if there is one, under "documents"."""
    if _HEADER.unpack_from(of)[3] != _OP_MSG:
        return {"": None}
    at = _HEADER.size + 4
    body: Command = {}
    extra: Command = {}
    while at < len(of):
        kind, at = of[at], at + 1
        size = struct.unpack_from("<i", of, at)[0]
        if kind == 0:
            body = bson.decode(of[at : at + size])
        else:
            documents = of.index(b"\0", at + 4) + 1
            extra["documents"] = bson.decode_all(of[documents : at + size])
        at += size
    return {**body, **extra}


def break_off(connection: socket.socket) -> None:
    """Both ways; a waiting reader notices it at once."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
