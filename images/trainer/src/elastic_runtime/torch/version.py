"""Which torch may read a checkpoint: what somebody else has written must not become code in a rank.

``torch.load(weights_only=True)`` could be made to run code before 2.6 (CVE-2025-32434), and again before 2.10
(CVE-2026-24747). An image of one's own may have any.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, distribution

from elastic_runtime.errors import InvalidSettings

LEAST = (2, 10)


def check_torch() -> None:
    """Do nothing where torch is new enough, or not there.

    Raises:
        InvalidSettings: it is older than :data:`LEAST`.
    """
    try:
        found = distribution("torch")
    except PackageNotFoundError:
        return
    numbers = re.match(r"(\d+)\.(\d+)", found.version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < LEAST:
        least = ".".join(map(str, LEAST))
        raise InvalidSettings(
            "torch",
            f"a checkpoint can make torch {found.version}, which lies in {found.locate_file('')}, run code "
            "(CVE-2025-32434, CVE-2026-24747)",
            f"Install torch {least} or newer there, or use an image that has it",
        )
