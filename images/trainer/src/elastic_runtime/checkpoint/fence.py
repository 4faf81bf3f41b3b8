"""Who may publish: the highest fencing token that a store has seen, and the run that showed it."""

from __future__ import annotations

import re
from typing import NamedTuple

from elastic_runtime.errors import FenceTaken, OwnershipLost

OWNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
"""Pattern of an owner, as a store keeps it."""


class Seen(NamedTuple):
    """Fence and owner that a store keeps."""

    fence: int | None = None
    """The highest fencing token; None: nobody has claimed the store."""
    owner: str = ""
    """Run that showed it; empty: not known."""

    def claimed(self, fence: int, owner: str, uri: str) -> Seen:
        """Return the store's new record once a writer has shown its token.

        Tokens are times in seconds, so two runs may have the same one. Then the first that claims the store has it.

        Args:
            fence: of the writer.
            owner: its run; empty: not known, which is compared with nobody.
            uri: of the store, for messages.

        Raises:
            OwnershipLost: a higher token was seen.
            FenceTaken: this one was, from another run.
        """
        if self.fence is None or self.fence < fence:
            return Seen(fence, owner)
        if self.fence > fence:
            raise OwnershipLost(f"{uri} belongs to a newer owner: its fence is {self.fence}, ours is {fence}")
        if owner and self.owner and owner != self.owner:
            problem = f"{uri} belongs to another run, {self.owner}, which began in the same second (fence {fence})"
            raise FenceTaken(f"{problem}. Let one run at a time train there")
        return Seen(fence, owner or self.owner)


def known_owner(text: str) -> str:
    """An owner as a store has kept it; empty for what cannot be one."""
    return text if OWNER.fullmatch(text) else ""
