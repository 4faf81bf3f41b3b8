"""A secret is hidden however a script writes it, also in lines: in the log of its task, and on its page."""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import FailureKind
from elastic_runtime.run.status_failure import FirstFailure
from elastic_training.airflow.sdk import redact
from elastic_training.clusters.fake import FakeCluster
from elastic_training.exceptions import TrainingFailed
from elastic_training.redaction.values import Secrets, remember_secrets
from tests.unit.provider.operator_bench import NAME, operator, trying

PEM = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEF\nAASCBKcwggSjAgEAAoIBAQC7VJTU\n-----END KEY-----\n"
AWKWARD = [
    "wJalr/XUtnFEMI+K7MDENG/bPxRfiCY=sown",
    "pa:ss w@rd/sown",
    "it's-a-sown",
    'both\'s "sown" ones',
    "a&b<c>'d\"-sown",
    "back\\slash's-sown",
    "pässwörd-sown",
    "\xff\xfe??>>sown?>",
]
WRITINGS: dict[str, Callable[[str], str]] = {
    "quote": lambda secret: f"http://host/?key={quote(secret)}",
    "lower case": lambda secret: re.sub("%..", lambda found: found[0].lower(), quote(secret, safe="")),
    "encodeURIComponent": lambda secret: quote(secret, safe="!~*'()"),
    "repr beside both quotes": lambda secret: repr(f"no \"user\" of 'host' has {secret}"),
    "shell": lambda secret: f"+ login {shlex.quote(secret)}",
    "set -x": lambda secret: "+ login '" + secret.replace("'", "'\\''") + "'",
    "html": html.escape,
    "jinja": lambda secret: html.escape(secret).replace("&#x27;", "&#39;").replace("&quot;", "&#34;"),
    "json of repr": lambda secret: json.dumps({"error": repr([secret])}),
    "repr of json": lambda secret: repr(json.dumps({"password": secret})),
    "repr of bytes": lambda secret: repr(secret.encode()),
    "urlsafe base64": lambda secret: base64.urlsafe_b64encode(secret.encode()).decode(),
    "base64 without padding": lambda secret: base64.b64encode(secret.encode()).decode().rstrip("="),
    "base64 of a line": lambda secret: base64.b64encode(f"{secret}\n".encode()).decode(),
    "yaml": lambda secret: yaml.safe_dump({"password": secret}),
}


@pytest.fixture(autouse=True)
def masker() -> Iterator[None]:
    """Airflow's own, with nothing in it before and after."""
    from airflow.sdk.log import _secrets_masker

    _secrets_masker().reset_masker()
    yield
    _secrets_masker().reset_masker()


@pytest.fixture(params=["log", "page"])
def hides(request: pytest.FixtureRequest) -> Callable[[dict[str, str]], Callable[[str], str]]:
    """What the task's log, or the run's page, makes of a text, once it knows an environment."""

    def taught(environment: dict[str, str]) -> Callable[[str], str]:
        if request.param == "page":
            return Secrets(environment).hide
        remember_secrets(environment)
        return lambda text: str(redact(text))

    return taught


@pytest.mark.parametrize("secret", AWKWARD)
@pytest.mark.parametrize("writing", WRITINGS)
def test_of_one_line(hides: Any, secret: str, writing: str) -> None:
    text = WRITINGS[writing](secret)
    shown = hides({"DB_PASSWORD": secret})(text)
    assert "***" in shown
    assert "sown" not in shown


@pytest.mark.parametrize("secret", ["sown-and-more\n", " sown-and-more\t", "\nsown-and-more"])
def test_with_blanks_that_scripts_strip(hides: Any, secret: str) -> None:
    shown = hides({"DB_PASSWORD": secret})(f"login {secret.strip()} failed, {json.dumps(secret.strip())}")
    assert shown.count("***") == 2
    assert "sown" not in shown


@pytest.mark.parametrize(
    "write",
    [
        str,
        str.strip,
        lambda pem: pem.replace("\n", "\r\n"),
        lambda pem: "\n".join(f"    {line}" for line in pem.splitlines()),
        lambda pem: json.dumps(pem.splitlines()),
        lambda pem: quote(pem.splitlines()[1]),
        repr,
    ],
    ids=["plain", "stripped", "CRLF", "indented", "lines in json", "a line in a URL", "repr"],
)
def test_of_several_lines(hides: Any, write: Callable[[str], str]) -> None:
    shown = hides({"SSH_PRIVATE_KEY": PEM})(f"no key: {write(PEM)}")
    assert "MIIE" not in shown
    assert "AASC" not in shown
    assert shown.startswith("no key: ")


def test_the_log_of_a_task_has_no_line_of_one(
    fake: FakeCluster, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    task_instance = trying()

    def end() -> None:
        words = f"Traceback (most recent call last):\n  File x\nValueError: cannot parse {PEM}"
        first = FirstFailure(0, "worker-0", "0", 3, 1, utc_now(), "cannot parse the key", words)
        lines = (f"2026-11-26T20:00:00.000Z worker-0 [0]<stdout>: {line}" for line in PEM.splitlines())
        fake.write_log(NAME, *lines)
        fake.publish(NAME, first_failure=first)
        fake.fail(NAME, FailureKind.RANK_FAILED, f"too many ranks failed; {first.summary}", 1)

    fake.script(end)
    train = operator(checkpoint_uri=store, environment={"SSH_PRIVATE_KEY": PEM})
    with pytest.raises(TrainingFailed):
        train.execute({"ti": task_instance})
    logged = str(redact(capsys.readouterr().out))
    assert "cannot parse ***" in logged
    assert "MIIE" not in logged + json.dumps(task_instance.pushed)
    assert "AASC" not in logged
