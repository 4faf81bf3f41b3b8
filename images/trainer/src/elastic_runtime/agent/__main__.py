"""``python -m elastic_runtime.agent``: see ``--help``."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import logging
import os
import sys
import time
from pathlib import Path

from elastic_runtime.agent import zygote
from elastic_runtime.agent.agent import Agent, AgentSettings, address_of, address_towards, interface_of
from elastic_runtime.agent.notices.clouds import Metadata
from elastic_runtime.errors import ElasticError, InvalidSettings
from elastic_runtime.net.sockets import split_host_and_port
from elastic_runtime.protocol.rank_sockets import RANK_FD, RANK_FD_INODE
from elastic_runtime.run.runobjects import IDENTITY_VARIABLE
from elastic_runtime.run.spec import HOSTFILE, NoticeService
from elastic_runtime.scheduling import stand_beside_ranks, stand_beside_ranks_no_more


def parse_arguments(arguments: list[str]) -> AgentSettings:
    """The command line as settings."""
    parser = argparse.ArgumentParser(prog="elastic_runtime.agent", description="Agent of one worker of a run.")
    parser.add_argument("--worker", required=True, help="name of this worker, new with each incarnation")
    parser.add_argument("--launcher", required=True, metavar="HOST:PORT", help="where to dial the launcher")
    parser.add_argument("--tls", required=True, type=Path, help="folder with ca.crt, agent.crt and agent.key")
    parser.add_argument("--slots", type=int, default=1, help="ranks that fit here")
    parser.add_argument("--node", default="", help="machine that this worker is on")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--interface", default="lo", help="network interface of the ranks' own traffic")
    where.add_argument("--address", help="its address instead")
    where.add_argument("--towards-launcher", action="store_true", help="the address from which the launcher is reached")
    parser.add_argument("--grace", type=float, default=30.0, help="seconds from SIGTERM to the end of this worker")
    parser.add_argument("--notice-file", type=Path, help="path at which a reclaim notice may appear")
    known = ", ".join(NoticeService)
    parser.add_argument(
        "--metadata",
        default=NoticeService.NONE,
        metavar="SERVICE[=ADDRESS]",
        help=f"metadata service to ask for reclaim notices: one of {known}",
    )
    parser.add_argument("--max-wait", type=float, default=30.0, help="seconds to keep dialling the launcher")
    parser.add_argument("--scratch", type=Path, help="folder for the files that come with the run, if not TMPDIR")
    parser.add_argument("--identity", type=Path, help="file with a token that proves which pod this is")
    parser.add_argument("--redial", action="store_true", help="outlive the launcher; end only on SIGTERM")
    settings = vars(parser.parse_args(arguments))
    # Where this is a pod, there is a place for it; of a machine it may be anybody's.
    settings["hostfile"] = HOSTFILE if settings["redial"] and os.access(Path(HOSTFILE).parent, os.W_OK) else None
    if settings["redial"] and (identity := os.environ.get(IDENTITY_VARIABLE)):
        settings["identity"] = settings["identity"] or Path(identity)
    settings["launcher"] = split_host_and_port(settings["launcher"])
    if settings.pop("towards_launcher"):
        settings["address"] = address_towards(*settings["launcher"])
    settings["metadata"] = Metadata.parse(settings["metadata"])
    if settings["address"]:
        settings["interface"] = interface_of(settings["address"])
        # As programs write it, or the launcher takes it for none.
        settings["address"] = str(ipaddress.ip_address(settings["address"]))
    else:
        settings["address"] = address_of(settings["interface"])
    return AgentSettings(**settings)


def main() -> None:
    """Exit status 0 when the agent was released or its time was over; 1 when it could not reach its launcher."""
    try:
        settings = parse_arguments(sys.argv[1:])
    except InvalidSettings as error:
        sys.exit(str(error))
    for variable in (RANK_FD, RANK_FD_INODE):  # Of a zygote that forked this agent as it forks ranks.
        os.environ.pop(variable, None)
    stand_beside_ranks_no_more()
    # Before the event loop: one thread, no open sockets. Before the log: how a rank writes its own is for its script.
    ahead = zygote.fork_ahead() if zygote.is_warm() else None
    stand_beside_ranks()
    logging.Formatter.converter = time.gmtime
    logging.basicConfig(
        level=logging.INFO,
        format=f"%(asctime)s.%(msecs)03dZ %(levelname)s {settings.worker} agent: %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
        stream=sys.stderr,
    )
    logging.getLogger("elastic_runtime").setLevel(logging.DEBUG)
    try:
        asyncio.run(Agent(settings, ahead).run())
    except ElasticError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
