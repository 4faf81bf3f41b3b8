"""Volumes of the pods, and where they are mounted. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from elastic_runtime.pool.pods.objects import TLS_FOLDER as POOL_FOLDER
from elastic_runtime.pool.pods.objects import PoolNames
from elastic_runtime.run.runobjects import (
    IDENTITY_FOLDER,
    IDENTITY_TOKEN,
    IDENTITY_VOLUME,
    JUPYTER_TOKEN,
    PROMETHEUS_TOKEN,
    STORE_FOLDER,
    TLS_FOLDER,
)
from elastic_runtime.run.spec import HOSTFILE, JupyterSpec, RunSpec
from elastic_training.settings.pods import SHM_FOLDER, Pods, SecretRef, Volume

READABLE = 0o440
"""Mode of secret files: readable for the pod's user through its ``fsGroup`` only."""
TOKEN_SECONDS = 3600
"""For which a pod's token is valid. The kubelet renews it after four fifths of that."""


@dataclass(frozen=True, slots=True)
class Mounted:
    """A volume of a pod and its place in the container."""

    volume: dict[str, Any]
    mount: dict[str, Any]


def _mounted(name: str, source: dict[str, Any], place: str, **more: Any) -> Mounted:
    return Mounted({"name": name, **source}, {"name": name, "mountPath": place, **more})


def certificates(secret: str, role: str, *more: str) -> Mounted:
    """The part of the run's certificates that this role needs: never another role's key.

    Args:
        secret: of the run.
        role: whose certificate and key.
        more: further files of it.
    """
    files = [{"key": name, "path": name} for name in ("ca.crt", f"{role}.crt", f"{role}.key", *more)]
    source = {"secret": {"secretName": secret, "items": files, "defaultMode": READABLE}}
    return _mounted("elastic-training-tls", source, TLS_FOLDER, readOnly=True)


def in_pool(pool: str, store: str | None) -> Iterator[Mounted]:
    """A launcher's whose workers are a pool's: certificates of the pool, and the checkpoint store's variables."""
    yield pool_certificates(pool, "agent")
    if store:
        source = {"secret": {"secretName": store, "defaultMode": READABLE}}
        yield _mounted("elastic-training-store", source, STORE_FOLDER, readOnly=True)


def pool_certificates(pool: str, role: str) -> Mounted:
    """The part of a pool's certificates that this role needs."""
    files = [{"key": name, "path": name} for name in ("ca.crt", f"{role}.crt", f"{role}.key")]
    source = {"secret": {"secretName": PoolNames(pool).tls, "items": files, "defaultMode": READABLE}}
    return _mounted("elastic-training-pool", source, POOL_FOLDER, readOnly=True)


def identity(audience: str) -> Mounted:
    """The worker's: a token that Kubernetes binds to the pod.

    The kubelet renews the file, and lets the pod's user or its ``fsGroup`` read it.

    Args:
        audience: to whom alone it is of use.
    """
    token = {
        "audience": audience,
        "expirationSeconds": TOKEN_SECONDS,
        "path": posixpath.basename(IDENTITY_TOKEN),
    }
    source = {"projected": {"sources": [{"serviceAccountToken": token}], "defaultMode": READABLE}}
    return _mounted(IDENTITY_VOLUME, source, IDENTITY_FOLDER, readOnly=True)


def prometheus(spec: RunSpec) -> list[Mounted]:
    """The launcher's: the token that a scraper has to show, where a Secret holds it."""
    asked = spec.observe.prometheus
    if asked is None or not asked.secret:
        return []
    return [_token("elastic-training-prometheus", asked.secret, PROMETHEUS_TOKEN)]


def jupyter_token(asked: JupyterSpec) -> Mounted:
    """The token that whoever uses it has to show."""
    return _token("elastic-training-jupyter", asked.secret, JUPYTER_TOKEN)


def _token(volume: str, secret: str, file: str) -> Mounted:
    """One key of a Secret, ``NAME/KEY``, as that file; nothing else is in its folder."""
    name, _, key = secret.partition("/")
    folder, path = posixpath.split(file)
    source = {"secret": {"secretName": name, "items": [{"key": key, "path": path}], "defaultMode": READABLE}}
    return _mounted(volume, source, folder, readOnly=True)


def hostfile(path: str | None, mounts: Sequence[dict[str, Any]]) -> list[Mounted]:
    """Its folder, which no image has and the workers' user could not make, unless something is mounted there.

    Args:
        path: of the hostfile, if it is not the usual one: then its folder is the user's affair.
        mounts: of the container so far.
    """
    folder = posixpath.dirname(HOSTFILE)
    if path not in (None, HOSTFILE) or any(each["mountPath"].rstrip("/") == folder for each in mounts):
        return []
    return [_mounted("elastic-training-hostfile", {"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}, folder)]


def worker_volumes(pods: Pods, *, shared_memory: bool = True) -> Iterator[Mounted]:
    """Return the user's volumes of the workers, and their shared memory."""
    if pods.hardware.shm and shared_memory:
        memory = {"emptyDir": {"medium": "Memory", "sizeLimit": pods.hardware.shm}}
        yield _mounted("elastic-training-shm", memory, SHM_FOLDER)
    for index, secret in enumerate(pods.secrets):
        if secret.mount:
            yield _mounted(f"elastic-training-secret-{index}", _files(secret), secret.mount, readOnly=True)
    for index, volume in enumerate(pods.volumes):
        more: dict[str, Any] = {"readOnly": True} if volume.read_only else {}
        if volume.sub_path:
            more["subPath"] = volume.sub_path
        yield _mounted(f"elastic-training-volume-{index}", _source(volume), volume.mount, **more)


def secret_environment(secrets: Sequence[SecretRef]) -> list[dict[str, Any]]:
    """Variables with the value of one key each."""
    return [
        {"name": each.env, "valueFrom": {"secretKeyRef": {"name": each.name, "key": each.key}}}
        for each in secrets
        if each.env
    ]


def _files(secret: SecretRef) -> dict[str, Any]:
    source: dict[str, Any] = {"secretName": secret.name, "defaultMode": READABLE}
    if secret.key:
        source["items"] = [{"key": secret.key, "path": secret.key}]
    return {"secret": source}


def _source(volume: Volume) -> dict[str, Any]:
    if volume.claim:
        return {
            "persistentVolumeClaim": {"claimName": volume.claim, **({"readOnly": True} if volume.read_only else {})}
        }
    if volume.secret:
        return {"secret": {"secretName": volume.secret, "defaultMode": READABLE}}
    if volume.config_map:
        return {"configMap": {"name": volume.config_map}}
    if volume.empty_dir:
        return {"emptyDir": {} if volume.empty_dir is True else {"sizeLimit": volume.empty_dir}}
    return dict(volume.raw or {})
