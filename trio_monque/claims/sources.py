"""DocumentSources: the parts of the engine's port for the documents of any collection. Nothing runs yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ..engine.lease import Beats
from ..engine.nursery import Engine
from ..engine.source import Control, Sources
from ..host.one_group import is_transient
from ..host.transaction_turns import Transactions
from ..store.documents.rescuing import SeenLock
from .claiming import DocumentClaims
from .context import ClaimsContext
from .early_settling import EarlySettling
from .events_and_report import RescuedDocument
from .locked_document import HeldDocument
from .reclaim_guard import ReclaimGuard
from .renewals import DocumentRenewals
from .rescues import DocumentRescues
from .runs import DocumentRuns, Work
from .settlement import DocumentSettlement
from .settling import DocumentSettling

DocumentEngine = Engine[HeldDocument, DocumentSettlement, Sequence[DocumentSettlement], SeenLock, RescuedDocument]
"""The engine, with the types of documents."""


@dataclass(frozen=True, kw_only=True)
class DocumentSources(
    Sources[HeldDocument, DocumentSettlement, Sequence[DocumentSettlement], SeenLock, RescuedDocument]
):
    """What the engine calls, and what else works on documents.

    Attributes:
        reclaim_guard: Detects documents that are claimed without end. A chore of the engine.
    """

    claims: DocumentClaims
    reclaim_guard: ReclaimGuard


def document_sources(
    shared: ClaimsContext, work: Work, control: Control[HeldDocument, DocumentSettlement]
) -> DocumentSources:
    """Make the parts for this engine. `work` is awaited for each claim."""
    beats = Beats()
    reclaim_guard = ReclaimGuard(shared.locked, shared.db_threads, shared.config.instance_id)
    claims = DocumentClaims(shared, beats, reclaim_guard, control)
    transactions: Transactions[HeldDocument, DocumentSettlement] = Transactions(
        shared.db_threads, shared.time, control, beats
    )
    ends = EarlySettling(shared, reclaim_guard, transactions, control)
    # If a new measurement of the server's clock differs from the last, all timers are wrong: look at once.
    shared.time.when_clock_moves(partial(control.post, control.look))
    return DocumentSources(
        claims=claims,
        runs=DocumentRuns(shared, work, claims, ends, control),
        settlements=DocumentSettling(shared, reclaim_guard, control),
        renewals=DocumentRenewals(shared, beats),
        rescues=DocumentRescues(shared, control),
        orphans=claims.claiming,
        is_transient=is_transient,
        reclaim_guard=reclaim_guard,
    )
