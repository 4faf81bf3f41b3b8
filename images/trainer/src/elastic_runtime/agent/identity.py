"""What proves to the launcher which worker this is: a token in a file, which whoever wrote it renews."""

from __future__ import annotations

import logging
from pathlib import Path

from elastic_runtime.printable import printable
from elastic_runtime.protocol.plausible import TOKEN

log = logging.getLogger(__name__)


def read_token(file: Path | None) -> str:
    """The token as it is now; empty where there is no file, or none that can be read: the launcher then decides.

    It is read for each connection, since it changes. Neither log nor error holds any of it.
    """
    if file is None:
        return ""
    try:
        with file.open("rb") as stream:
            content = stream.read(TOKEN + 1).strip()
    except OSError as error:
        log.warning("cannot read this pod's token: %s", printable(error))
        return ""
    if len(content) > TOKEN or not content.isascii():
        log.warning("cannot use this pod's token: %s is not ASCII text of at most %d bytes", file, TOKEN)
        return ""
    return content.decode()
