"""What a run's spec asks for of Jupyter beside its workers."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_runtime.errors import InvalidSettings


@dataclass(frozen=True, slots=True)
class JupyterSpec:
    """A pod beside the workers."""

    secret: str
    """``NAME/KEY`` of the Secret that holds the token."""
    port: int = 8888
    memory: str = "2Gi"
    """That it may use, and has for sure, as Kubernetes writes it."""

    def __post_init__(self) -> None:
        name, _, key = self.secret.partition("/")
        if not (name and key):
            raise InvalidSettings("jupyter.token", "there is none", 'Write "NAME/KEY" of a Secret that holds it')
        if not 1024 <= self.port <= 65535:
            problem = f"{self.port} is not a port that a program without rights can have"
            raise InvalidSettings("jupyter.port", problem, "Write 1024 to 65535")
