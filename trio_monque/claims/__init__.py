"""The engine, for the documents of any collection: `SELECT ... FOR UPDATE SKIP LOCKED`, with leases."""

from .claim import Claim
from .claims import Claims, RunningClaims, open_claims, run_claims
from .events_and_report import ClaimsReport
from .managing import DeadLetter, create_claim_index, dead_letters, readmit
from .statistics import ClaimsStatistics

__all__ = [
    "Claim",
    "Claims",
    "ClaimsReport",
    "ClaimsStatistics",
    "DeadLetter",
    "RunningClaims",
    "create_claim_index",
    "dead_letters",
    "open_claims",
    "readmit",
    "run_claims",
]
