"""The stores of Google and Azure: their names, their libraries, and who the ranks are."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from elastic_runtime.checkpoint import open_store, validate_store_uri
from elastic_runtime.checkpoint.azure import bucket as azure_client
from elastic_runtime.errors import InvalidSettings
from tests import azure_server, gcs_server
from tests.faulty_proxy import Refuse, Send, faulty_proxy, matching
from tests.unit.checkpoints.clouds_bench import Cloud

pytestmark = pytest.mark.usefixtures("no_pauses")


@pytest.mark.parametrize("module", ["google.auth.transport.requests", "azure.storage.blob"])
def test_without_the_library_the_remedy_is_to_install_it(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    kind, extra = ("gs", "gcs") if "google" in module else ("az", "azure")
    with pytest.raises(InvalidSettings, match=rf"needs .* not installed.*Install elastic-runtime\[{extra}\]"):
        open_store(f"{kind}://bucket/run").names()


@pytest.mark.parametrize("extra", ["gcs", "azure"])
def test_without_any_of_its_modules_too(extra: str) -> None:
    program = (
        "import sys; sys.modules.update({name: None for name in ('google.auth', 'azure.core', 'azure.storage')});"
        f"from elastic_runtime.checkpoint import open_store; open_store('{'gs' if extra == 'gcs' else 'az'}://bbb/run').names()"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert f"Install elastic-runtime[{extra}]" in done.stderr


def test_checking_a_uri_imports_no_library() -> None:
    program = (
        "import sys, elastic_runtime.checkpoint as c;"
        "[c.validate_store_uri(f'{kind}://bucket/run') for kind in ('gs', 'az', 'abfs')]; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert not [name for name in done.stdout.split() if name.startswith(("google", "azure", "requests"))]


@pytest.mark.parametrize(
    "uri", ["gs://bucket/a b/c", "az://container", "abfs://container@account.dfs.core.windows.net/run", "abfs://abc/x"]
)
def test_a_uri_that_is_one_is_taken(uri: str) -> None:
    validate_store_uri(uri)
    assert open_store(uri).uri == uri


@pytest.mark.parametrize("uri", ["gs://", "gs://UPPER/x", "az://a/x", "az://user@c/x", "abfs://key:secret@a/x"])
def test_a_uri_without_a_bucket_is_refused(uri: str) -> None:
    with pytest.raises(InvalidSettings, match="no valid name of a bucket"):
        validate_store_uri(uri)


@pytest.mark.parametrize(("alias", "ours"), [("gcs", "gs"), ("wasbs", "abfs"), ("abfss", "abfs"), ("s3n", "s3")])
def test_other_names_of_a_scheme_name_ours(alias: str, ours: str) -> None:
    with pytest.raises(InvalidSettings, match=rf"no checkpoint store handles '{alias}://bucket/x'\. Write {ours}://"):
        validate_store_uri(f"{alias}://bucket/x")


def test_credentials_that_are_given_go_before_those_of_the_process(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "none")
    url = cloud.proxy.url
    given = {
        "STORAGE_EMULATOR_HOST": url,
        "AZURE_STORAGE_CONNECTION_STRING": "",
        "AZURE_STORAGE_SERVICE_ENDPOINT": f"{url}/{azure_server.ACCOUNT}",
        "AZURE_STORAGE_ACCOUNT_NAME": azure_server.ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": azure_server.KEY,
    }
    store = cloud.opened(given)
    store.claim(7)
    store.close()
    assert cloud.proxy.seen
    if cloud.kind == "az":
        assert f"SharedKey {azure_server.ACCOUNT}:" in cloud.proxy.seen[0].headers["Authorization"]


def test_an_account_that_nothing_names_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in azure_client._VARIABLES:
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)
    with pytest.raises(InvalidSettings, match=r"which storage account az://container/run is in.*ACCOUNT_NAME"):
        open_store("az://container/run").claim(1)


@pytest.fixture(scope="session")
def google_key() -> dict[str, str]:
    """Of a service account that nobody knows."""
    pem = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {"type": "service_account", "private_key": pem.decode(), "client_email": "trainer@tests"}


def test_a_key_of_google_is_exchanged_for_a_token(gs: str, google_key: dict[str, str]) -> None:
    token = json.dumps({"access_token": "the-token", "expires_in": 3600, "token_type": "Bearer"}).encode()
    with faulty_proxy(gs) as proxy:
        answer = Send(
            {"Content-Length": str(len(token)), "Content-Type": "application/json"}, lambda go_on: go_on(token)
        )
        proxy.fault = matching(answer, "POST", "/token")
        key = json.dumps({**google_key, "token_uri": f"{proxy.url}/token"})
        given = {"STORAGE_EMULATOR_HOST": proxy.url, "ELASTIC_TRAINING_GCS_KEY": key}
        store = open_store(f"gs://{gcs_server.new_bucket()}/run", given)
        store.claim(1)
        store.close()
        assert proxy.count("POST", "/token") == 1
        tokens = {
            value
            for request in proxy.seen
            for name, value in request.headers.items()
            if request.path != "/token" and name.lower() == "authorization"
        }
        assert tokens == {"Bearer the-token"}


def test_a_key_that_google_does_not_know_is_said(gs: str, google_key: dict[str, str]) -> None:
    with faulty_proxy(gs) as proxy:
        proxy.fault = lambda request: Refuse(400, "invalid_grant")
        key = json.dumps({**google_key, "token_uri": f"{proxy.url}/token"})
        store = open_store("gs://bucket/run", {"ELASTIC_TRAINING_GCS_KEY": key})
        with pytest.raises(InvalidSettings, match=r"RefreshError.*Give the workers credentials"):
            store.claim(1)
        store.close()
