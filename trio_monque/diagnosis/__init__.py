"""What is wrong, and why: facts about jobs, instances, indexes and the server, without words."""

from .findings import Diagnosis, Finding, Severity
from .reasons import Reason

__all__ = ["Diagnosis", "Finding", "Reason", "Severity"]
