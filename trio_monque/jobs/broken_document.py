"""A document that no scheduler runs, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class BrokenDocument:
    """A document in the jobs collection that no scheduler runs: it is not a job, or is pending and bears an owner.

    Attributes:
        document_id: Its `_id`, of whatever type.
        reason: What is wrong with it.
        document: What is in it, as far as it can be decoded. Of what is large there is only a note how large it is.
    """

    document_id: object
    reason: str
    document: Mapping[str, Any]
