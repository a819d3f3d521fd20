"""Judges workflows of job nurseries when all is over: by what is stored, what was seen, and what their handlers wrote.

`nursery_witness.py` judges while they run, and `tree_judge.py` the trees.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from trio_monque.store.driver.types import Database

from .nursery_witness import Witnessed
from .nursery_worker import expected_of, has_transaction, is_declined
from .records import read
from .tree_judge import wrong_in_trees, wrong_records
from .trees import NAMES


def judge(db: Database, found: Witnessed, numbers: dict[Any, int], roots: int, records: Path) -> Counter[str]:
    """Raise if a promise was broken; return how much was seen of what."""
    assert not found.faults, "\n".join(found.faults)
    jobs = db.monque_jobs
    wrong = []
    for one in jobs.find({"name": "order"}):
        number = numbers[one["_id"]]
        if (one["status"], one.get("result")) != ("completed", expected_of(number)):
            wrong.append((number, one["status"], one.get("result"), one.get("failReason"), one["attempts"]))
        assert "ownScope" not in one
        # A stall of the servers may be longer than the limit of a transaction, which is a failed attempt.
        failures = [failure["error"] for failure in one.get("errors", ())]
        assert all(failure.startswith("TransactionTimeoutError") for failure in failures), one
        assert one["failCount"] == len(failures), one
    assert wrong == []
    assert found.live() == []
    twice = [one for one, count in found.completions.items() if count > 1]
    assert twice == []
    effects = Counter(one["number"] for one in db.effects.find())
    wanted = {number: 1 for number in numbers.values() if has_transaction(number) and not is_declined(number)}
    assert effects == wanted
    written = read(records)
    assert wrong_records(written) == []
    of_trees = list(jobs.find({"name": {"$in": NAMES}}))
    assert sum(one["name"] == "root" for one in of_trees) == roots
    assert wrong_in_trees(of_trees, [one["job"] for one in db.fruits.find()]) == []
    starts = [record for record in written if record.what == "start"]
    runs = Counter(record.job for record in starts if record.detail in ("order", "root"))
    return Counter(
        workflows=len(numbers),
        trees=roots,
        jobs=jobs.count_documents({}),
        jobs_of_trees=len(of_trees),
        fruits=db.fruits.count_documents({}),
        effects=len(effects),
        children=len(found.child),
        starts=len(starts),
        most_runs=max(runs.values(), default=0),
        events=found.seen,
        longest_orphan=found.longest_orphan,
        **{f"trees {status}": count for status, count in Counter(one["status"] for one in of_trees).items()},
        **found.counts,
    )
