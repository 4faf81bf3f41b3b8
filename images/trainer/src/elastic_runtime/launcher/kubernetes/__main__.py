"""``python -m elastic_runtime.launcher.kubernetes``: the launcher of a run, in a pod of its own.

Exit status 0: a final status was published, whatever it says. 2 (``COULD_NOT_RUN``): no launcher can run this run; the
container's termination message says why. 3 (``REPLACED``): another launcher goes on. 1: try again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys

from elastic_runtime.errors import ElasticError, OwnershipLost, PermanentError, RunNotFound
from elastic_runtime.launcher.kubernetes.settings import LauncherSettings, read_settings
from elastic_runtime.launcher.record.output import start_log
from elastic_runtime.net.descriptors import raise_descriptor_limit
from elastic_runtime.printable import LONG, printable
from elastic_runtime.run.runobjects import COULD_NOT_RUN, REPLACED
from elastic_runtime.run.status import Status
from elastic_runtime.scheduling import stand_beside_ranks

log = logging.getLogger("elastic_runtime.launcher")

MAX_TERMINATION_MESSAGE = 4096
"""Bytes that Kubernetes keeps of a termination message."""


async def run(settings: LauncherSettings) -> Status:
    """Until the run has ended or another launcher goes on. SIGTERM is no cancel: it asks this launcher to make way."""
    # Here, since what they import may be missing, which is to be the pod's last message.
    from elastic_runtime.kubernetes.connect import connect
    from elastic_runtime.launcher.kubernetes.service import serve

    taken = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, taken.set)
    async with connect(settings.namespace, settings.kubeconfig, "elastic-training-launcher") as client:
        return await serve(client, settings, taken, sys.stdout)


def outcome_of(settings: LauncherSettings) -> int:
    """Run it; the exit status."""
    try:
        status = asyncio.run(run(settings))
    except OwnershipLost as error:
        log.info("another launcher goes on: %s", printable(error, LONG))
        return REPLACED
    except (PermanentError, RunNotFound) as error:
        log.error("this run cannot be run: %s", printable(error, LONG))
        write_termination_message(settings, str(error))
        return COULD_NOT_RUN
    except ImportError as error:
        words = f"{printable(error)}. Use an image with elastic-runtime[kubernetes] and what the run's engine needs"
        log.exception("this run cannot be run: %s", words)
        write_termination_message(settings, words)
        return COULD_NOT_RUN
    except ElasticError as error:
        log.error("%s", printable(error, LONG))
        write_termination_message(settings, str(error))
        return 1
    except Exception as error:  # Of whatever kind: the log is the only place where somebody will look for it.
        log.exception("the launcher has failed; another one will try again")
        write_termination_message(settings, f"the launcher has failed: {error!r}")
        return 1
    return 0 if status.phase.final else REPLACED


def write_termination_message(settings: LauncherSettings, words: str) -> None:
    """Leave the reason where Kubernetes, and so the operator, finds it."""
    with contextlib.suppress(OSError):  # Outside of a pod there is no such place.
        settings.termination_log.write_bytes(words.encode()[:MAX_TERMINATION_MESSAGE])


def main() -> None:
    """Run the launcher of the pod's run, and exit with its status."""
    start_log()
    raise_descriptor_limit()
    stand_beside_ranks()
    try:
        settings = read_settings(sys.argv[1:], os.environ)
    except PermanentError as error:
        log.error("this run cannot be run: %s", printable(error, LONG))
        sys.exit(COULD_NOT_RUN)
    sys.exit(outcome_of(settings))


if __name__ == "__main__":
    main()
