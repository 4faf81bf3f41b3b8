"""What the demo shows while it runs: one line, kept up to date on a terminal, printed now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status as Spinner

from demo_kit.digits_run import Snapshot

_EVERY = 5.0
"""Seconds between two printed lines, when nothing but the step has changed."""
_SHORT = {"none": "waits", "scheduled": "queued", "up_for_reschedule": "waits"}


class ProgressLine:
    """Shows the text given last.

    Args:
        console: a terminal or not.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._spinner: Spinner | None = console.status("") if console.is_terminal else None
        self._printed: tuple[str, float] = ("", 0.0)
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        if self._spinner:
            self._spinner.start()
        return self

    def pause(self) -> None:
        """Leave the terminal to others from now on."""
        if self._spinner:
            self._spinner.stop()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._spinner:
            self._spinner.stop()

    def show(self, text: str, key: str | None = None) -> None:
        """Show ``text``; printed at once when ``key`` (default: the text) differs from the last one's."""
        elapsed = time.monotonic() - self._began
        if self._spinner:
            self._spinner.update(f"{elapsed:4.0f} s  {text}")
            return
        last_key, last_time = self._printed
        if last_key != (key or text) or elapsed - last_time >= _EVERY:
            self._printed = (key or text, elapsed)
            self._console.print(f"{elapsed:4.0f} s  {text}", highlight=False, soft_wrap=True)

    def show_run(self, snapshot: Snapshot) -> None:
        """Task states, world size, step and loss."""
        tasks = "  ".join(f"{task} {_SHORT.get(state, state)}" for task, state in sorted(snapshot.tasks.items()))
        training, size = "", 0
        if status := snapshot.training:
            size = status.world_size
            loss = f", loss {status.metrics['loss']:.3f}" if "loss" in status.metrics else ""
            training = f"  |  {size} ranks train, step {status.step or 0}{loss}" if size else f"  |  {status.phase}"
        self.show(tasks + training, key=f"{tasks}{size}")
