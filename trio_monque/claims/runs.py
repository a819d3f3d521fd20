"""DocumentRuns: hands a claimed document to the work on it, and decides what the end of that work means."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any, Final

from ..engine.demand import ClaimTraits
from ..engine.run import Run
from ..engine.run_end import RunEnd
from ..engine.source import Control
from ..foreign_errors import safe_error
from ..host.one_group import GROUP
from ..host.run_ends import MissedLeases
from ..jobs.outcomes import Failed
from .claim import Claim
from .claim_work import ClaimWork
from .claiming import DocumentClaims
from .context import ClaimsContext
from .early_settling import EarlySettling
from .locked_document import HeldDocument
from .settlement import DocumentSettlement, outcome_of

Work = Callable[[Claim[Any], ClaimWork], Awaitable[object]]
"""Works on the document of a claim: hands the claim to a task, or calls the handler. Returns when the work is over."""

MOST_MISSED_LEASES: Final = 3
"""Runs in a row that may miss their lease without a failed attempt. As many deaths as a job survives by default."""


class DocumentRuns:
    """The `RunSource` of documents. Used on the thread of the trio run.

    Args:
        work: Awaited for each claim.
        ends: Writes the ends that claims ask for.
    """

    def __init__(
        self,
        shared: ClaimsContext,
        work: Work,
        claims: DocumentClaims,
        ends: EarlySettling,
        control: Control[HeldDocument, DocumentSettlement],
    ) -> None:
        self._loop = shared.loop
        self._policy = shared.policy
        self._time_limit = math.inf if shared.config.timeout is None else shared.config.timeout
        self._work = work
        self._key_of = claims.key_of
        self._ends = ends
        self._control = control
        self._missed_leases = MissedLeases()

    def traits_of(self, claim: HeldDocument) -> ClaimTraits:
        return ClaimTraits(self._key_of(claim.id), GROUP, time_limit=self._time_limit)

    def execute(self, run: Run[HeldDocument]) -> Awaitable[object]:
        work = ClaimWork(run, self._control)
        return self._work(Claim(run, self._ends, work, self._loop), work)

    def conclude(self, claim: HeldDocument, end: RunEnd) -> DocumentSettlement:
        end = self._missed_leases.counted(claim.key, end, MOST_MISSED_LEASES)
        try:
            outcome = outcome_of(end, self._time_limit, self._policy)
        except BaseException as error:  # noqa: BLE001  # A property of a subclass of Retry: it fails its document only.
            outcome = Failed(safe_error(error))
        return DocumentSettlement(claim, outcome)
