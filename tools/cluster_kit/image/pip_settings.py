"""How pip is set up on this machine, to be lent to the build as a secret: it may hold passwords of an index."""

from __future__ import annotations

import ast
import configparser
import importlib.util
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster_kit.shell import run

CERTIFICATES = "/etc/pip.crt"
"""Where the build finds the certificates."""
_LENT = ("index-url", "extra-index-url", "trusted-host", "timeout", "default-timeout", "retries", "proxy")


@dataclass(frozen=True, slots=True)
class PipSettings:
    """Options by their long names, as pip would use them for ``pip install``."""

    options: Mapping[str, str]

    @classmethod
    def read(cls) -> PipSettings:
        """Ask pip: its files, and its environment variables, which come last and prevail. Nothing where pip is not."""
        options: dict[str, str] = {}
        if importlib.util.find_spec("pip") is None:
            return cls(options)
        for line in run(sys.executable, "-m", "pip", "config", "list").splitlines():
            key, _, value = line.partition("=")
            section, _, option = key.rpartition(".")
            if section in {"global", "install", ":env:"}:
                options[option] = str(ast.literal_eval(value))
        return cls(options)

    def wheels(self, pattern: str) -> tuple[Path, ...]:
        """Files of that name in the folders in which pip looks for wheels."""
        folders = [word.removeprefix("file://") for word in self.options.get("find-links", "").split()]
        return tuple(
            sorted(path for folder in folders if folder.startswith("/") for path in Path(folder).glob(pattern))
        )

    def write(self, folder: Path) -> dict[str, Path]:
        """Write them for the build; returns the secrets by their ids. Folders of this machine are left out."""
        settings = configparser.RawConfigParser()
        settings["global"] = {key: self._usable(key) for key in _LENT if self._usable(key)}
        secrets = {"pip.conf": folder / "pip.conf"}
        if certificates := self.options.get("cert"):
            settings["global"]["cert"] = CERTIFICATES
            secrets["certificates"] = folder / "pip.crt"
            shutil.copyfile(certificates, secrets["certificates"])
        with secrets["pip.conf"].open("w") as stream:
            settings.write(stream)
        return secrets

    def _usable(self, key: str) -> str:
        return " ".join(word for word in self.options.get(key, "").split() if not word.startswith(("file:", "/")))
