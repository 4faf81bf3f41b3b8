"""Settings that an agent gets when it is started."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from elastic_runtime.agent.notices.services import NO_METADATA, Metadata


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Settings of one worker's agent."""

    worker: str
    """Name of this worker, unique in the run, new with each incarnation."""
    launcher: tuple[str, int]
    """Address and port to dial."""
    tls: Path
    """Folder with ``ca.crt``, ``agent.crt`` and ``agent.key``."""
    slots: int = 1
    """Ranks that fit here."""
    node: str = ""
    """Machine that this worker is on."""
    interface: str = "lo"
    """Network interface of the ranks' own traffic."""
    address: str = ""
    """Address of this worker in that traffic. Empty: not known."""
    grace: float = 30.0
    """Seconds from SIGTERM to the end of this worker."""
    notice_file: Path | None = None
    """Path at which a reclaim notice may appear."""
    metadata: Metadata = NO_METADATA
    """Metadata service of the cloud, to be asked for reclaim notices."""
    max_wait: float = 30.0
    """Seconds to keep dialling a launcher that does not answer."""
    scratch: Path | None = None
    """Where the folder of the files that came with the run is made; None: where temporary files are."""
    hostfile: str | None = None
    """Path at which the hosts of the world are kept, unless the run says another; None: in a folder of the agent's."""
    identity: Path | None = None
    """File with a token that proves which pod this is, and that changes; None: the launcher asks for none."""
    redial: bool = False
    """Outlive the launcher: dial again, for ever, whenever it hangs up; and end only when terminated, for whoever
    started this agent would start it again."""
