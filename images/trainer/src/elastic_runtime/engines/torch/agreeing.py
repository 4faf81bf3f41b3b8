"""At which commit the ranks of a world agree next: settled from their answers, without any I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from elastic_runtime.engines.torch.messages import AgreeAt, Prepare, Prepared


@dataclass(slots=True)
class Agreeing:
    """Agreements of one world, one at a time. See :mod:`~elastic_runtime.engines.torch.messages`.

    Whoever wants one while another is prepared needs no other: what it has heard, it says at that one.
    """

    world: int
    serial: int = 0
    _prepares: bool = False
    _begun: dict[str, int] = field(default_factory=dict)

    def want(self) -> Prepare | None:
        """Return the message that all ranks are to get. None: they have it."""
        if self._prepares:
            return None
        self._prepares, self._begun = True, {}
        self.serial += 1
        return Prepare(self.world, self.serial)

    def prepared(self, rank_id: str, said: Prepared, members: Iterable[str]) -> AgreeAt | None:
        """A rank has answered.

        Returns:
            What all ranks are to be told; None: others have not answered yet.
        """
        if not self._prepares or said.serial != self.serial:
            return None
        self._begun[rank_id] = said.begun
        if not self._begun.keys() >= set(members):
            return None
        self._prepares = False
        return AgreeAt(self.world, self.serial, max(self._begun.values()) + 1)
