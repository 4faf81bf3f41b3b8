"""``python -m elastic_runtime.agent.join``, or ``elastic-join``: have this machine join a run, as one worker of it.

The token is exchanged for a certificate of this worker's own. Then an agent serves the run until the run needs it no
more, or until it is ended with SIGTERM or Ctrl-C, upon which its ranks leave at a commit.
"""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from elastic_runtime import __version__
from elastic_runtime.agent.agent import RETRY, Agent, AgentSettings, Parting, interface_of
from elastic_runtime.agent.notices.clouds import Metadata
from elastic_runtime.errors import ClusterUnavailable, ElasticError, InvalidDocument, InvalidSettings, PermanentError
from elastic_runtime.net.certificates import join_client_context, new_key, request_for, write
from elastic_runtime.net.framing import decode_line
from elastic_runtime.net.sockets import named_address
from elastic_runtime.printable import LONG, printable
from elastic_runtime.protocol.joining import JoinGranted, JoinMessage, JoinRefused, JoinRequest, decode, encode
from elastic_runtime.protocol.rank_sockets import RANK_FD, RANK_FD_INODE
from elastic_runtime.retry import Retry
from elastic_runtime.run.join import JoinToken, pin_of
from elastic_runtime.run.spec import NoticeService
from elastic_runtime.scheduling import stand_beside_ranks

log = logging.getLogger(__name__)

TOKEN_VARIABLE = "ELASTIC_JOIN_TOKEN"  # noqa: S105  # the name of a variable
"""Where the token is read if it is not an argument, which other users of the machine can see."""
EXCHANGE = 15.0
"""Seconds for all of it."""
TRIES = 5
"""A launcher with more strangers than seats hangs up on some of them."""
LONGEST_ANSWER = 16384
"""Bytes."""


@dataclass(frozen=True, slots=True)
class JoinArguments:
    """What a person says."""

    run: str
    launcher: tuple[str, int]
    token: JoinToken
    address: ipaddress.IPv4Address | ipaddress.IPv6Address | None
    directory: str | None
    metadata: Metadata


def parse_arguments(words: Sequence[str] | None = None) -> JoinArguments:
    """The command line as settings. Raises InvalidSettings, and SystemExit for wrong words."""
    parser = argparse.ArgumentParser(prog="elastic-join", description="Have this machine join a run, as a worker.")
    parser.add_argument("run", metavar="RUN", help="the run's name")
    parser.add_argument("--at", required=True, metavar="HOST:PORT", help="where its launcher listens")
    parser.add_argument("--token", help=f"as elastic-training token RUN prints it (default: {TOKEN_VARIABLE})")
    parser.add_argument(
        "--address",
        type=ipaddress.ip_address,
        help="IP address of this machine at which the other ranks reach it (default: its own towards HOST)",
    )
    parser.add_argument("--directory", metavar="PATH", help="working directory of the ranks (default: the run's)")
    parser.add_argument(
        "--metadata",
        default=NoticeService.NONE,
        metavar="SERVICE[=ADDRESS]",
        help=f"metadata service to ask for reclaim notices: one of {', '.join(NoticeService)} (default: none)",
    )
    found = parser.parse_args(words)
    token = os.environ.pop(TOKEN_VARIABLE, "")  # Not for the ranks.
    host, separator, port = found.at.rpartition(":")
    if not (separator and host.strip("[]") and port.isascii() and port.isdigit() and 0 < int(port[:6]) <= 65535):
        raise InvalidSettings("--at", f"{printable(found.at)!r} is not HOST:PORT", "Write as in 10.0.0.5:7443")
    if found.directory and not os.path.isdir(found.directory):
        raise InvalidSettings("--directory", f"{printable(found.directory)} is not a folder", "Write one that is")
    launcher = host.strip("[]"), int(port)
    metadata = Metadata.parse(found.metadata)
    return JoinArguments(
        found.run, launcher, JoinToken.parse(found.token or token), found.address, found.directory, metadata
    )


async def exchange(arguments: JoinArguments, folder: Path) -> AgentSettings:
    """Exchange the token for a certificate, in a folder for this user alone. Returns settings for the agent.

    Raises:
        ClusterUnavailable: no launcher answers.
        InvalidSettings: it is not the launcher that the token is for, or no interface has the address.
        PermanentError: the launcher refuses.
    """
    where = f"{arguments.launcher[0]}:{arguments.launcher[1]}"
    key, pem = new_key()
    request = request_for(key)
    retry = Retry(RETRY)
    try:
        async with asyncio.timeout(EXCHANGE):
            for _ in range(TRIES):
                if heard := await _ask(arguments, request, where):
                    break
                await retry.pause()
            else:
                raise ConnectionError("it hangs up. Does the run have workers.join?")
    except (OSError, InvalidDocument) as error:  # ssl.SSLError and TimeoutError are OSErrors, too
        problem = printable(str(error) or "no answer in time", LONG)
        raise ClusterUnavailable(f"no launcher that can be joined at {where}: {problem}") from error
    answer, address = heard
    if isinstance(answer, JoinRefused):
        raise PermanentError(f"the run does not let this machine join: {printable(answer.reason)}")
    if not isinstance(answer, JoinGranted):
        raise ClusterUnavailable(f"the launcher at {where} does not answer the question")
    for name, data in (("ca.crt", answer.authority.encode()), ("agent.crt", answer.certificate.encode())):
        write(folder / name, data)
    write(folder / "agent.key", pem)
    return AgentSettings(
        worker=answer.worker,
        launcher=arguments.launcher,
        tls=folder,
        slots=answer.slots,
        interface=interface_of(address),
        address=address,
        grace=answer.grace,
        metadata=arguments.metadata,
        directory=arguments.directory,
    )


async def _ask(arguments: JoinArguments, certificate: str, where: str) -> tuple[JoinMessage, str] | None:
    """The launcher's answer, and the ranks' own address. None: it hung up, as with too many strangers."""
    host, port = arguments.launcher
    try:
        reader, writer = await asyncio.open_connection(host, port, ssl=join_client_context(), limit=LONGEST_ANSWER)
    except ConnectionResetError:
        return None
    try:
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        if shown is None or pin_of(shown) != arguments.token.pin:  # Before anything is sent.
            problem = f"the launcher at {where} is not the one that the token is for"
            raise InvalidSettings("--at", problem, "Write where the run's launcher listens, or get a new token")
        address = str(arguments.address or ipaddress.ip_address(writer.get_extra_info("sockname")[0]))
        secret, named = arguments.token.secret.hex(), await asyncio.to_thread(named_address)
        writer.write(encode(JoinRequest(arguments.run, secret, certificate, __version__, address, named)))
        line = await reader.readline()
        return (decode(decode_line(line)), address) if line else None
    except ConnectionResetError:
        return None
    except ValueError as error:
        if isinstance(error, ElasticError):
            raise
        raise InvalidDocument(f"an answer of more than {LONGEST_ANSWER} bytes") from error
    finally:
        writer.close()


async def join(arguments: JoinArguments, folder: Path) -> None:
    """Serve the run until the end. Raises as :func:`exchange` and :meth:`.Agent.run`."""
    settings = await exchange(arguments, folder)
    name, run = settings.worker, printable(arguments.run)
    log.info("this machine joins the run %s as %s; its ranks use the address %s", run, name, settings.address)
    # Ctrl-C, too, is an announcement; the ranks do not get it.
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, signal.raise_signal, signal.SIGTERM)
    while await Agent(settings).run() is Parting.DISCONNECTED:
        log.warning("the connection to the launcher is lost; dialing again")
    log.info("%s has left the run %s", name, run)


def main(words: Sequence[str] | None = None) -> None:
    """Exit status 0 when this machine has left the run in order; 1 when it could not join, or not connect again."""
    logging.Formatter.converter = time.gmtime
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s.%(msecs)03dZ %(levelname)s join: %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
        stream=sys.stderr,
    )
    stand_beside_ranks()
    try:
        arguments = parse_arguments(words)
        for variable in (RANK_FD, RANK_FD_INODE):  # Of a rank in which this may run.
            os.environ.pop(variable, None)
        with tempfile.TemporaryDirectory(prefix="elastic-join-") as folder:
            asyncio.run(join(arguments, Path(folder)))
    except ElasticError as error:
        sys.exit(str(error))
    except ImportError as error:
        words = "Install elastic-runtime[torch], [horovod] or [tensorflow] there"
        sys.exit(f"{sys.executable} cannot join a run: {printable(error)}. {words}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
