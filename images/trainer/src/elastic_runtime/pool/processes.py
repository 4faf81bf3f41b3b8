"""What the processes of a pool have in common."""

from __future__ import annotations

import logging
import sys
import time


def start_log(who: str) -> None:
    """Write log lines to stderr, which is the pool's log.

    Args:
        who: named in each line.
    """
    logging.Formatter.converter = time.gmtime
    logging.basicConfig(
        level=logging.INFO,
        format=f"%(asctime)s.%(msecs)03dZ %(levelname)s {who}: %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
        stream=sys.stderr,
    )
