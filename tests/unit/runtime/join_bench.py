"""A run that machines may join, without a launcher: its certificates and tokens, and a machine that joins."""

from __future__ import annotations

import socket
from contextlib import closing
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from elastic_runtime import __version__
from elastic_runtime.agent.agent import AgentSettings
from elastic_runtime.agent.join import JoinArguments, exchange
from elastic_runtime.agent.notices.clouds import NO_METADATA
from elastic_runtime.launcher.joining import Joining
from elastic_runtime.net import certificates
from elastic_runtime.run.join import JoinSpec, JoinToken, pin_of
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.spec import RunSpec, Timing, WorkersSpec

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
RUN = RunSpec(
    "run", "uid", ("true",), WorkersSpec(1, 1, 3), warm=False, join=JoinSpec("127.0.0.1"), timing=Timing(tick=0.02)
)


def own_request() -> str:
    """A request for a certificate, as a machine makes it."""
    return certificates.request_for(certificates.new_key()[0])


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        return int(taken.getsockname()[1])


class JoinableRun:
    """Also the machine: it has a folder for each worker that it joins as."""

    def __init__(self, base: Path) -> None:
        self.now, self._base = NOON, base
        self.folder = RunDir(base / "run")
        self.folder.create(RUN, "me")
        self.tls = self.folder.tls
        authority = certificates.create(self.tls, ["127.0.0.1"])
        self.joining = Joining(RUN, authority, self.tls, self.folder, __version__, lambda: self.now)

    def token(self, lifetime: timedelta = timedelta(hours=1)) -> JoinToken:
        made = JoinToken.create(pin_of(self.folder.launcher_certificate()))
        self.folder.offer_token(made.digest, self.now, lifetime)
        return made

    async def join(self, port: int, token: JoinToken, run: str = "run") -> AgentSettings:
        """Raises as the command fails."""
        folder = self._base / f"machine-{len(list(self._base.iterdir()))}"
        folder.mkdir()
        at = ("127.0.0.1", port)
        return await exchange(JoinArguments(run, at, token, ip_address("127.0.0.1"), None, NO_METADATA), folder)
