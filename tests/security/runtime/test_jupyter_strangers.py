"""Nobody uses a run's Jupyter without its token, whatever its Secret holds and its image is configured to.

With a real server where ELASTIC_TRAINING_TEST_JUPYTER names an interpreter that has jupyter-server.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import elastic_runtime
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.launcher import notebook
from elastic_runtime.launcher.notebook import check_jupyter, read_token, server
from tests.paced import until

TOKEN = "0123456789abcdef0123"
INTERPRETER = os.environ.get("ELASTIC_TRAINING_TEST_JUPYTER")
HOSTILE = """
c.ServerApp.token = c.IdentityProvider.token = c.PasswordIdentityProvider.token = ""
c.ServerApp.password = c.PasswordIdentityProvider.hashed_password = "sha1:0:0"
c.ServerApp.identity_provider_class = "jupyter_server.auth.identity.LegacyIdentityProvider"
c.ServerApp.allow_unauthenticated_access = True
c.ServerApp.allow_root = True
"""


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"short", b"a" * 5000, b"0123456789 abcdef0123", b"0123456789abcdef\n0123", b"\xff" * 20]
)
def test_a_secret_that_holds_no_token_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(TOKEN.encode() + b"\n")
    assert read_token(path) == TOKEN
    path.write_bytes(content)
    with pytest.raises(InvalidSettings, match="16 to 4096") as refused:
        read_token(path)
    assert content.decode(errors="replace")[:30] not in str(refused.value) or len(content) < 2
    with pytest.raises(InvalidSettings, match="cannot be read"):
        read_token(tmp_path / "none")


def test_an_image_without_jupyter_is_told_of_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "find_spec", lambda _name: None)
    with pytest.raises(InvalidSettings, match="pip install jupyterlab"):
        check_jupyter()
    with pytest.raises(InvalidSettings, match="pip install jupyterlab"):
        server(8888, TOKEN)


class Server:
    """In place of Jupyter's, with an image that has its own ideas of who may come in."""

    def __init__(self, **ideas: Any) -> None:
        self.identity_provider = SimpleNamespace(**{"token": TOKEN, "auth_enabled": True} | ideas)
        self.argv: list[str] = []

    def initialize(self, argv: list[str]) -> None:
        self.argv = argv


@pytest.mark.parametrize(
    "ideas", [{"token": ""}, {"token": "x" * 20}, {"auth_enabled": False}, {"hashed_password": "h"}]
)
def test_an_image_that_lets_others_in_is_refused(monkeypatch: pytest.MonkeyPatch, ideas: dict[str, Any]) -> None:
    for name in ("jupyter_server", "jupyter_server.serverapp"):
        module: Any = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)
    module.ServerApp = SimpleNamespace(instance=lambda: app)
    app = Server()
    assert server(8888, TOKEN) is app
    assert f"--PasswordIdentityProvider.token={TOKEN}" in app.argv
    app = Server(**ideas)
    with pytest.raises(InvalidSettings, match="lets in others"):
        server(8888, TOKEN)


def answer(port: int, token: str = "") -> int:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/api/contents")
    if token:
        request.add_header("Authorization", f"token {token}")
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return 0


@pytest.mark.skipif(not INTERPRETER, reason="ELASTIC_TRAINING_TEST_JUPYTER names no interpreter with jupyter-server")
def test_a_real_one_asks_for_the_token_whatever_its_image_says(tmp_path: Path) -> None:
    assert INTERPRETER is not None
    (tmp_path / ".jupyter").mkdir()
    (tmp_path / ".jupyter" / "jupyter_server_config.py").write_text(HOSTILE)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [INTERPRETER, "-m", "elastic_runtime.launcher.notebook", str(port), str(tmp_path / "token")]
    environment = {**os.environ, "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    environment["PYTHONPATH"] = str(Path(elastic_runtime.__file__).parents[1])
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    try:
        until(lambda: answer(port), (tmp_path / "log").read_text)
        assert [answer(port), answer(port, "x" * 20), answer(port, TOKEN)] == [403, 403, 200]
        assert TOKEN.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert TOKEN not in (tmp_path / "log").read_text()
    finally:
        process.terminate()
        process.wait()
