"""The view for terminals, with rich."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final

import trio
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from .progress import InstanceActivity, Progress
from .views import Row, logs_said

FRAME_INTERVAL: Final = 0.125
BAR_WIDTH: Final = 44


class LiveView:
    """Draws bars by status and what each scheduler does; lines that are said scroll by above."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)

    def say(self, line: str) -> None:
        self._console.print(Text(line, style="dim"))

    def reporting_logs(self) -> AbstractContextManager[None]:
        return logs_said(self.say)

    async def show(self, progress: Progress) -> None:
        # Drawn by this task, not by rich's own thread: what is drawn is only touched here.
        with Live(_drawn(progress), console=self._console, auto_refresh=False) as live:
            try:
                while True:
                    await trio.sleep(FRAME_INTERVAL)
                    live.update(_drawn(progress), refresh=True)
            finally:
                live.update(_drawn(progress), refresh=True)

    def show_table(self, title: str, rows: Sequence[Row], *, good: bool) -> None:
        style = "green" if good else "red"
        table = Table(title=title, title_style=f"bold {style}", border_style=style, box=box.ROUNDED, show_header=False)
        table.add_column(style="bold", no_wrap=good)
        table.add_column(overflow="fold")
        for label, value in rows:
            table.add_row(Text(label), Text(value))
        self._console.print(table)


def _drawn(progress: Progress) -> RenderableType:
    # The last line is left free: a terminal echoes "^C" there, and past the end of a full line it would scroll.
    return Group(Rule(_headline(progress), style="cyan"), _bars(progress), Text(), _instances(progress), Text())


def _headline(progress: Progress) -> Text:
    return Text.assemble(
        ("trio-monque demo", "bold"), f"  {progress.state}  {progress.elapsed:.1f} s  ", (_rate(progress), "bold cyan")
    )


def _rate(progress: Progress) -> str:
    return f"{progress.jobs_per_second:,.0f} jobs/s"


def _bars(progress: Progress) -> Table:
    counts = progress.counts
    table = Table.grid(padding=(0, 2))
    table.add_column(width=10)
    table.add_column(width=BAR_WIDTH)
    table.add_column(justify="right", width=9)
    for label, count, style in (
        ("enqueued", progress.enqueued, "cyan"),
        ("pending", counts.pending, "yellow"),
        ("processing", counts.processing, "blue"),
        ("completed", counts.completed, "green"),
        ("retried", progress.retried, "magenta"),
        ("failed", counts.failed, "red"),
    ):
        bar = ProgressBar(progress.files, count, complete_style=style, finished_style=style)
        table.add_row(label, bar, f"{count:,}")
    return table


def _instances(progress: Progress) -> Table:
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(width=8)
    table.add_column(justify="right", width=10)
    table.add_column(justify="right", width=10)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for instance in progress.instances:
        table.add_row(
            Text(instance.name, style="bold"),
            f"{instance.completed:,} done",
            f"{len(instance.running)} running",
            Text(_files(progress, instance), style="dim"),
        )
    return table


def _files(progress: Progress, instance: InstanceActivity) -> str:
    # Most runs are over before they can be drawn: then the last ones tell more than an empty line.
    return "  ".join(map(progress.shown, instance.recent))
