"""No error and no log line quotes a token or a password, however it is written there."""

from __future__ import annotations

import asyncio
import base64
import json
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
import yaml
from airflow.providers.common.compat.sdk import mask_secret, redact

from elastic_runtime.documents import from_json
from elastic_runtime.errors import ElasticError, InvalidDocument, InvalidSettings
from elastic_runtime.kubernetes.errors import unreachable
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Status
from elastic_training.clusters.kubernetes.access import Access, read_access
from elastic_training.clusters.kubernetes.connection import client, load
from elastic_training.clusters.kubernetes.manifests.objects import render, run_objects
from elastic_training.clusters.kubernetes.manifests.template import merge
from elastic_training.concurrency.bridge import run
from elastic_training.operators.checks import check_checkpoint_uri, check_environment
from elastic_training.redaction.masking import mask, mask_in_loop, secrets_of
from elastic_training.redaction.values import remember_secrets
from elastic_training.settings import Pods, Volume
from elastic_training.settings.templating import plain

TOKEN = "tok3n-nobody-may-see"
AWKWARD = ['quo"ted-secret', "back\\slash-secret", "apo'strophe-secret", "ümlaut+/&-secret"]


@pytest.fixture(autouse=True)
def masker() -> Iterator[None]:
    """Airflow's own, with nothing in it before and after."""
    from airflow.sdk.log import _secrets_masker

    _secrets_masker().reset_masker()
    yield
    _secrets_masker().reset_masker()


def said(error: BaseException) -> str:
    """All that a log shows of it."""
    return "".join(traceback.format_exception(error)) + str(error) + repr(error.args)


def check(action: Callable[[], object]) -> None:
    """Raises what it raises, once that has been searched for the token."""
    try:
        action()
    except ElasticError as error:
        if TOKEN in said(error):
            pytest.fail(f"{type(error).__name__} quotes the token")
        raise


def kubeconfig(user: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "contexts": [{"name": "one", "context": {"cluster": "here", "user": "me"}}],
        "clusters": [{"name": "here", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "me", "user": user}],
    }


def access(document: Any) -> Access:
    return read_access("cloud", {"kube_config": document})


class TestAKubeconfig:
    @pytest.mark.parametrize(
        "text",
        [
            f"users:\n- user:\n    token: {TOKEN}\n   broken: 1\n",
            f'users:\n- user: {{token: "{TOKEN}\n',
            f"users:\n\t- token: {TOKEN}\n",
            f"users: *{TOKEN}\n",
            f"users: !{TOKEN} 1\n",
            f"token: {TOKEN}\ntoken: [{TOKEN}\n",
        ],
    )
    def test_that_does_not_parse_is_told_by_its_place(self, text: str) -> None:
        with pytest.raises(InvalidSettings, match=r"not YAML \(line \d+, column \d+\)") as caught:
            load(access(text))
        assert TOKEN not in said(caught.value)
        assert "'cloud'" in str(caught.value)

    @pytest.mark.parametrize(
        "document",
        [
            TOKEN,
            f"- {TOKEN}",
            kubeconfig(TOKEN),
            kubeconfig({"token": [TOKEN]}),
            kubeconfig({"client-certificate-data": TOKEN, "client-key-data": TOKEN}),
            {**kubeconfig({"token": TOKEN}), "users": TOKEN},
            {**kubeconfig({"token": TOKEN}), "contexts": [{"token": TOKEN}]},
            {**kubeconfig({"token": TOKEN}), "clusters": {"token": TOKEN}},
        ],
    )
    def test_that_has_another_form_is_not_quoted(self, document: Any) -> None:
        with suppress(InvalidSettings):  # Some of them the library takes.
            check(lambda: load(access(document)))

    def test_whose_plugin_fails_does_not_show_what_that_has_written(self, tmp_path: Path) -> None:
        plugin = tmp_path / "plugin"
        plugin.write_text(f"#!/bin/sh\necho {TOKEN} >&2\nexit 1\n")
        plugin.chmod(0o700)
        user = {
            "exec": {
                "apiVersion": "client.authentication.k8s.io/v1",
                "command": str(plugin),
                "interactiveMode": "Never",
            }
        }
        with suppress(InvalidSettings):  # Or the library goes on without a token.
            check(lambda: load(access(kubeconfig(user))))

    @pytest.mark.parametrize("secret", [TOKEN, *AWKWARD])
    def test_that_is_used_has_its_secrets_masked(self, secret: str) -> None:
        async def use() -> None:
            async with client(access(kubeconfig({"token": secret, "username": "somebody"})), "training"):
                pass

        run(use())
        assert secret not in redact(f"Authorization: Bearer {secret}")
        assert json.dumps(secret)[1:-1] not in redact(json.dumps({"header": secret}))
        assert redact("somebody") == "somebody"

    def test_and_in_a_triggerer_too(self) -> None:
        asyncio.run(mask_in_loop([TOKEN, *AWKWARD]))
        assert TOKEN not in redact(TOKEN)


class TestARegisteredSecret:
    @pytest.mark.parametrize("secret", AWKWARD)
    @pytest.mark.parametrize(
        "write",
        [
            lambda secret: f"as it is: {secret}.",
            lambda secret: json.dumps({"value": secret}),
            lambda secret: json.dumps({"value": secret}, ensure_ascii=False),
            lambda secret: json.dumps({"annotation": json.dumps({"value": secret})}),
            lambda secret: yaml.safe_dump({"value": secret}, width=10_000, allow_unicode=True),
            lambda secret: repr({"value": secret}),
            lambda secret: f"https://host/?key={quote(secret, safe='')}",
            lambda secret: f"https://host/?key={quote_plus(secret)}",
            lambda secret: base64.b64encode(secret.encode()).decode(),
        ],
        ids=["plain", "json", "json in unicode", "json in json", "yaml", "repr", "quoted", "plus", "base64"],
    )
    def test_is_masked_however_it_is_written(self, secret: str, write: Callable[[str], str]) -> None:
        text = write(secret)
        mask([secret])
        shown = redact(text)
        assert shown != text
        assert "secret" not in shown

    @pytest.mark.parametrize("secret", [TOKEN, *AWKWARD])
    def test_that_is_rendered_into_an_environment_is_not_in_the_manifests_that_are_shown(self, secret: str) -> None:
        mask_secret(secret)  # As Airflow does with a connection's password; in no other form.
        environment = {"URL": f"postgres://somebody:{secret}@host", "SEEN": "not that"}
        spec = RunSpec(name="run", uid="1", command=("python", f"--key={secret}"), environment=environment)
        pods = Pods(image="trainer:1", env={"KEY": secret}, annotations={"note": secret})

        remember_secrets([plain(environment), plain(pods), list(spec.command)])
        shown = redact(render(run_objects(spec, "", pods, namespace="training").all()))

        assert "-secret" not in shown
        assert TOKEN not in shown
        assert "not that" in shown


class TestDocuments:
    @pytest.mark.parametrize(
        ("kind", "document"),
        [
            (RunSpec, {"name": [TOKEN]}),
            (RunSpec, {"name": "a", "uid": "1", "command": TOKEN, "environment": TOKEN}),
            (RunSpec, {"name": "a", "uid": "1", "command": ["a"], "workers": {"minimum": TOKEN}}),
            (RunSpec, {"name": "a", "uid": "1", "command": ["a"], "recovery": {"mode": TOKEN, "max_wait": TOKEN}}),
            (Status, {"run": "a", "uid": "1", "phase": TOKEN, "reason": "", "updated": TOKEN, "series": {"a": TOKEN}}),
            (Status, [TOKEN]),
            (Status, TOKEN),
        ],
    )
    def test_that_cannot_be_read_are_not_quoted(self, kind: type, document: Any) -> None:
        with pytest.raises((InvalidDocument, InvalidSettings)) as caught:
            from_json(kind, json.dumps(document))
        assert TOKEN not in said(caught.value)

    def test_nor_are_those_that_are_no_json(self) -> None:
        with pytest.raises(InvalidDocument, match="line 1 column") as caught:
            from_json(RunSpec, f'{{"name": "{TOKEN}')
        assert TOKEN not in said(caught.value)

    def test_nor_is_a_pod_template(self, tmp_path: Path) -> None:
        template = tmp_path / "pod.yaml"
        template.write_text(f"spec:\n  env: {TOKEN}\n bad: [\n")
        with pytest.raises(InvalidSettings, match=r"line \d+, column \d+") as caught:
            merge(str(template), {}, "launcher", "pods.launcher.template")
        assert TOKEN not in said(caught.value)


class TestUrls:
    @pytest.mark.parametrize(
        "uri",
        [
            f"s3://key:{TOKEN}@bucket/runs",
            f"s3://{TOKEN}@bucket/runs",
            f"file://user:{TOKEN}@localhost/runs",
            f"https://user:{TOKEN}@host/runs",
            f"s3://bucket/runs?secret={TOKEN}",
            f"s3://bucket/runs#{TOKEN}",
            f"s3://[{TOKEN}/runs",
        ],
    )
    def test_a_checkpoint_uri_with_credentials_is_refused_and_not_quoted(self, uri: str) -> None:
        with pytest.raises(InvalidSettings, match="checkpoint_uri: it holds credentials") as caught:
            check_checkpoint_uri(uri)
        assert TOKEN not in said(caught.value)

    def test_the_password_of_a_proxy_or_server_is_not_in_what_is_said_of_it(self) -> None:
        error = OSError(f"400, message='no', url='http://me:{TOKEN}@proxy:3128' for https://x:{TOKEN}@server/api")
        told = unreachable(error, "list pods")
        assert TOKEN not in said(told)
        assert "//proxy:3128" in str(told)


class TestSettings:
    def test_an_environment_that_is_none_is_not_quoted(self) -> None:
        with pytest.raises(InvalidSettings, match="a str is not a mapping") as caught:
            check_environment(f"KEY={TOKEN}")
        assert TOKEN not in said(caught.value)

    @pytest.mark.parametrize("env", [f"KEY={TOKEN}", {"KEY": {"value": TOKEN}}, {"KEY": [TOKEN]}])
    def test_nor_is_that_of_the_pods(self, env: Any) -> None:
        with pytest.raises(InvalidSettings) as caught:
            Pods(image="trainer:1", env=env, volumes=[Volume("/data", claim="data")])
        assert TOKEN not in said(caught.value)


class TestAliases:
    def test_a_secret_that_a_kubeconfig_names_many_times_over_is_found_once(self) -> None:
        levels = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 9))
        bomb = yaml.safe_load(f"l0: &l0 [{{token: {TOKEN}}}]\n{levels}users: [{{user: {{more: *l8}}}}]\n")
        assert list(secrets_of(bomb)) == [TOKEN]

    def test_one_that_holds_itself_ends(self) -> None:
        loop = yaml.safe_load(f"users: [{{user: &user {{token: {TOKEN}, again: *user}}}}]")
        assert list(secrets_of(loop)) == [TOKEN]

    def test_of_what_a_plugin_is_handed_what_is_named_as_a_secret_is_one(self) -> None:
        """Else a profile of the name ``failed`` would hide that word on all pages of Airflow."""
        env = [{"name": "AWS_PROFILE", "value": "failed"}, {"name": "VAULT_TOKEN", "value": TOKEN}]
        kubeconfig = {"users": [{"name": "me", "user": {"exec": {"env": env}, "password": "no"}}]}
        assert list(secrets_of(kubeconfig)) == [TOKEN]
