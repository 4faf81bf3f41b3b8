"""When the ranks of a new world are told again of notices for which nothing is durable yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class TellingAgain:
    """Repeats open notices once in each new world.

    The rank that was to write may be lost, and the next rank 0 was not notified, or takes the notice as handled.
    """

    def __init__(self) -> None:
        self._told = 0
        """The generation that knows."""
        self._writer = ""
        """Rank 0 of that generation."""

    def due(
        self, generation: int, ranks: Sequence[str], *, trains: bool, is_open: bool, runs: Callable[[str], bool]
    ) -> bool:
        """Whether to tell them now; asked in each round of the launcher.

        Args:
            generation: counts the run's complete worlds.
            ranks: of the present world, by rank.
            trains: it is complete.
            is_open: nothing durable has yet what there was at a notice.
            runs: whether that rank's process does.
        """
        if generation == self._told:
            self._writer = ranks[0] if ranks and trains else self._writer
            return False
        if is_open and self._writer not in ranks and runs(self._writer):
            return False  # It leaves, and ends its write before it does.
        self._told = generation
        return is_open
