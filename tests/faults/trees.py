"""Trees of three levels: what their jobs do, and what has to become of each, by its place alone.

A root has nine branches, a branch ten twigs, a twig ten leaves: a thousand jobs, and some of later blocks. In some
twigs a leaf fails. Most of these twigs handle it. Those of a frail branch do not: they fail, and their branch handles
it, which has cancelled its other twigs, and so their leaves. In one tree of four the frail branches fail as well, and
the root cancels all others.

Everywhere "place" is the first block, "undo" the one behind its failure, and "ship" the one behind its success.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random, SystemRandom
from typing import Any, Final

import anyio

from trio_monque import Discard, JobNurseryError, RunningJob, Workers, open_job_nursery

from .records import Recorder

Place = Sequence[int]
"""The numbers of a tree, its branch, its twig and its leaf, as far down as the job is."""

BELOW: Final[Mapping[str, tuple[str, int]]] = {"root": ("branch", 9), "branch": ("twig", 10), "twig": ("leaf", 10)}
LEVELS: Final = ("root", "branch", "twig", "leaf")
SMALL: Final = ("prune", "seal")
NAMES: Final = (*LEVELS, *SMALL)


def level_of(place: Place) -> str:
    return LEVELS[len(place) - 1]


def children_of(place: Place) -> Sequence[Place]:
    _, count = BELOW[level_of(place)]
    return [[*place, number] for number in range(count)]


def has_failing_block(place: Place) -> bool:
    """Whether its first block fails: a child of it does."""
    match place:
        case [tree]:
            return tree % 4 == 3
        case [tree, branch]:
            return (tree + branch) % 3 == 0
        case [tree, branch, twig]:
            return (tree + 10 * branch + twig) % 7 == 0
    return False


def fails(place: Place) -> bool:
    """Whether it may end as failed only; it may be cancelled, as any job below a root."""
    match place:
        case [tree, _]:
            return has_failing_block(place) and has_failing_block([tree])
        case [tree, branch, _]:
            return has_failing_block(place) and has_failing_block([tree, branch])
        case [tree, _, twig, leaf]:
            return has_failing_block(place[:3]) and leaf == (tree + twig) % BELOW["twig"][1]
    return False


def result_of(place: Place) -> int:
    """Of a job that completes."""
    if level_of(place) == "leaf":
        return place[-1] + 1
    return 0 if has_failing_block(place) else sum(map(result_of, children_of(place)))


def has_seal(place: Place) -> bool:
    """Whether it has a block behind the success of its first one."""
    return not has_failing_block(place) and (level_of(place) != "twig" or place[-1] % 2 == 0)


def has_effect(place: Place) -> bool:
    """Whether it ends with a transaction."""
    return level_of(place) != "leaf" and sum(place) % 3 == 0


class Trees:
    """The handlers."""

    def __init__(self, db: Any, recorder: Recorder, workers: Workers) -> None:
        self._db = db
        self._recorder = recorder
        for name in BELOW:
            workers.register(name, self.limb, store_result=True, max_attempts=20, concurrency=20)
        workers.register("leaf", self.leaf, max_attempts=20, concurrency=30)
        for name in SMALL:
            workers.register(name, self.small, max_attempts=20, concurrency=30)

    def _write(self, job: RunningJob[Any], what: str, detail: str = "") -> None:
        self._recorder.write(what, str(job.id), job.attempt, detail)

    async def leaf(self, job: RunningJob[Place]) -> int:
        self._write(job, "start", job.name)
        # It takes time, but not the machine's: other tests may run beside these.
        chance = int(str(job.id)[-4:], 16)
        await anyio.sleep(0.5 if fails(job.data) else 0.1 + 0.02 * (chance % 20))
        if fails(job.data):
            raise Discard("barren")
        if job.attempt == 1 and chance % 16 == 0:
            raise OSError("once")
        return result_of(job.data)

    async def small(self, job: RunningJob[Place]) -> None:
        self._write(job, "start", job.name)
        await anyio.sleep(0.05)

    async def limb(self, job: RunningJob[Place]) -> int:
        """A root, a branch or a twig."""
        place = job.data
        self._write(job, "start", job.name)
        children = list(children_of(place))
        if job.name != "twig":
            plan = await job.step("plan", _drawn)
            self._write(job, "planned", str(plan))
            Random(plan).shuffle(children)
        try:
            async with open_job_nursery(job, key="place", on_drain="release") as nursery:
                below = await nursery.map(BELOW[job.name][0], children)
        except JobNurseryError:
            self._write(job, "went on", "failed")
            if fails(place):
                raise
            async with open_job_nursery(job, key="undo") as nursery:
                await nursery.start("prune", place)
            result = 0
        else:
            self._write(job, "went on", "normally")
            result = sum(child.result for child in below)
            if has_seal(place):
                async with open_job_nursery(job, key="ship") as nursery:
                    await nursery.start("seal", place)
        if has_effect(place):

            def commit(session: Any) -> int:
                self._db.fruits.insert_one({"job": job.id}, session=session)
                return result

            await job.transaction(commit)
        return result


async def _drawn() -> int:
    """Another number each time: a later run has to get that of the first one."""
    return SystemRandom().randrange(1 << 40)
