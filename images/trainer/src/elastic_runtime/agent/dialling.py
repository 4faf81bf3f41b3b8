"""An agent's way to its launcher."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import ssl
from pathlib import Path

import psutil

from elastic_runtime.errors import ClusterUnavailable, InvalidSettings
from elastic_runtime.net.certificates import LAUNCHER, agent_context
from elastic_runtime.net.framing import MAX_LINE
from elastic_runtime.printable import printable
from elastic_runtime.retry import Retry, RetryPolicy

log = logging.getLogger(__name__)

RETRY = RetryPolicy(first=0.2, longest=2.0)
ATTEMPT = 5.0
"""Seconds for one attempt: nobody answers for the address of a pod that is gone."""
COMPLAINT = 30.0
"""Seconds between two lines in the log about a launcher that does not answer."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def dial(launcher: tuple[str, int], tls: Path, max_wait: float | None) -> Streams:
    """Connect, as often as it takes.

    Args:
        launcher: address and port.
        tls: folder with the agent's certificate.
        max_wait: seconds to keep trying; None: no limit, and an invalid certificate does not end it either.

    Raises:
        ClusterUnavailable: nobody answered in that time, or it was a launcher of another run.
    """
    context, (host, port), loop = agent_context(tls), launcher, asyncio.get_running_loop()
    begun, complained, retry = loop.time(), loop.time(), Retry(RETRY)
    while True:
        try:
            async with asyncio.timeout(ATTEMPT):
                return await asyncio.open_connection(host, port, ssl=context, server_hostname=LAUNCHER, limit=MAX_LINE)
        except OSError as error:  # ssl.SSLError and TimeoutError are some, too
            problem = f"no launcher at {host}:{port}: {str(error) or 'no answer'}"
            if isinstance(error, ssl.SSLError):
                problem = f"the launcher at {host}:{port} is not this run's: {error}"
            final = isinstance(error, ssl.SSLError) or loop.time() - begun > (max_wait or 0.0)
            if max_wait is not None and final:
                raise ClusterUnavailable(problem) from error
        if loop.time() - complained > COMPLAINT:
            complained = loop.time()
            log.warning("%s; still trying", printable(problem))
        await retry.pause()


def interface_of(address: str) -> str:
    """The network interface that has this address.

    Raises:
        InvalidSettings: none has.
    """
    wanted = ipaddress.ip_address(address)
    found = psutil.net_if_addrs()
    for interface, addresses in found.items():
        for each in addresses:
            if each.family in (socket.AF_INET, socket.AF_INET6):
                own = ipaddress.ip_address(each.address.partition("%")[0])
                if own == wanted:
                    return interface
    remedy = f"Give an address of one of {', '.join(found)}"
    raise InvalidSettings("--address", f"no network interface here has the address {address}", remedy)


def address_of(interface: str) -> str:
    """The IP address by which others reach this one, IPv4 if there is any; empty when there is none."""
    own = [
        each for each in psutil.net_if_addrs().get(interface, ()) if each.family in (socket.AF_INET, socket.AF_INET6)
    ]
    own.sort(key=lambda each: each.family != socket.AF_INET)
    return own[0].address.partition("%")[0] if own else ""
