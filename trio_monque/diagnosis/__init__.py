"""What is wrong, and why: facts about jobs, instances, indexes and the server, without words."""

from .concerns import Concern
from .findings import Diagnosis, Finding, Severity
from .overview import NameOverview, Overview
from .reasons import Reason

__all__ = ["Concern", "Diagnosis", "Finding", "NameOverview", "Overview", "Reason", "Severity"]
