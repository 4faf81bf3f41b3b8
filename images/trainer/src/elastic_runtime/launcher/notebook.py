"""The program of a run's Jupyter pod: ``python -m elastic_runtime.launcher.notebook PORT TOKEN_FILE``.

Nobody comes in without the token: of a configuration that the image brings, and that lets others in, the program says
so and ends, as without a token or without Jupyter.
"""

from __future__ import annotations

import os
import sys
import tempfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from elastic_runtime.errors import InvalidSettings

LEAST_TOKEN, MOST_TOKEN = 16, 4096
_REMEDY = 'Name an image of your own in which "pip install jupyterlab" was run, or leave jupyter out'


def check_jupyter() -> None:
    """Raises InvalidSettings where the image has no Jupyter; the launcher's is the pod's."""
    if find_spec("jupyter_server") is None:
        raise InvalidSettings("jupyter", "Jupyter is not installed in the run's image", _REMEDY)


def read_token(path: Path) -> str:
    """Raises InvalidSettings for what is none."""
    try:
        with path.open("rb") as stream:
            token = stream.read(MOST_TOKEN + 1).strip()
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror}"
        raise InvalidSettings(
            "jupyter.token", problem, "Name a Secret of the run's namespace, and a key of it"
        ) from error
    text = token.decode("ascii", errors="replace")
    if not LEAST_TOKEN <= len(token) <= MOST_TOKEN or not (text.isascii() and text.isprintable()) or " " in text:
        problem = f"the Secret's key does not hold {LEAST_TOKEN} to {MOST_TOKEN} printable ASCII characters"
        raise InvalidSettings("jupyter.token", problem, "Write a random token into it")
    return text


def server(port: int, token: str) -> Any:
    """Jupyter's server, ready to start.

    Args:
        port: to listen on, at all addresses of the pod.
        token: the one way in. Not a word of the command line, which other processes of the pod would see.

    Raises:
        InvalidSettings: there is no Jupyter here, or it is configured to let others in.
    """
    check_jupyter()
    options = {
        "ServerApp.ip": "*",
        "ServerApp.port": port,
        "ServerApp.port_retries": 0,
        "ServerApp.open_browser": False,
        "ServerApp.allow_unauthenticated_access": False,
        "ServerApp.default_url": "/lab" if find_spec("jupyterlab") else "/",
        "ServerApp.identity_provider_class": "jupyter_server.auth.identity.PasswordIdentityProvider",
        # A class of its own, and its base: a configuration of either goes before ours of the other.
        "PasswordIdentityProvider.token": token,
        "PasswordIdentityProvider.hashed_password": "",
        "PasswordIdentityProvider.allow_password_change": False,
        "IdentityProvider.token": token,
    }
    app = import_module("jupyter_server.serverapp").ServerApp.instance()
    app.initialize(argv=[f"--{name}={value}" for name, value in options.items()])
    provider = app.identity_provider
    if provider.token != token or not provider.auth_enabled or getattr(provider, "hashed_password", ""):
        raise InvalidSettings("jupyter", "the image's configuration of Jupyter lets in others than the token", _REMEDY)
    return app


def main() -> None:
    """Until it is terminated. Exit status 1, with the reason, where it cannot be."""
    os.umask(0o077)
    os.environ.setdefault("JUPYTER_RUNTIME_DIR", tempfile.mkdtemp())  # A home may be read-only.
    try:
        app = server(int(sys.argv[1]), read_token(Path(sys.argv[2])))
    except InvalidSettings as error:
        sys.exit(f"jupyter: {error}")
    app.start()


if __name__ == "__main__":
    main()
