"""An open transaction that has written to one document, which is locked for other writers meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pymongo import errors as driver

from trio_monque.store.driver.types import ClientSession, Collection

NO_SUCH_TRANSACTION: Final = 251


def begin_with(session: ClientSession, collection: Collection, document_id: object, fields: Mapping[str, Any]) -> None:
    """Start a transaction in this session, and set fields of a document in it.

    On a busy server, a transaction may begin with a snapshot from before the document was stored: then it begins again.
    """
    session.start_transaction()
    while not collection.update_one({"_id": document_id}, {"$set": fields}, session=session).matched_count:
        session.abort_transaction()
        session.start_transaction()


def is_open(session: ClientSession, collection: Collection) -> bool:
    """Whether the server still holds what the transaction has written. It ends one by itself under pressure.

    Only what is open locks a document: a test of locks begins again with another one.
    """
    try:
        collection.find_one({}, ["_id"], session=session)
    except driver.OperationFailure as error:
        if error.code != NO_SUCH_TRANSACTION:
            raise
        return False
    return True
