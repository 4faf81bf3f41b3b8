"""Holds manifests against the schemas of Kubernetes' versions, and against a policy: ``check.py FOLDER``.

Runs in ``.venv-manifests``: kubernetes-validate brings the schemas, checkov the checks of Pod Security. What Pod
Security calls "restricted" and no check of checkov's asks for stands in ``tests/unit/provider``.
"""

from __future__ import annotations

import copy
import functools
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from kubernetes_validate import utils

VERSIONS = [f"1.{minor}" for minor in range(28, 38)]
RESTRICTED = {
    "CKV_K8S_16": "no container is privileged",
    "CKV_K8S_17": "none sees the node's processes",
    "CKV_K8S_18": "none shares memory with the node's processes",
    "CKV_K8S_19": "none uses the node's network",
    "CKV_K8S_20": "none gains privileges",
    "CKV_K8S_23": "none runs as root",
    "CKV_K8S_25": "none has more capabilities than it began with",
    "CKV_K8S_26": "none takes a port of the node",
    "CKV_K8S_27": "none sees the container engine",
    "CKV_K8S_31": "all have a seccomp profile",
    "CKV_K8S_37": "all drop all capabilities",
}
FORBIDDEN: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "forbidden", "namespace": "training"},
    "spec": {
        **dict.fromkeys(("hostPID", "hostIPC", "hostNetwork"), True),
        "volumes": [{"name": "engine", "hostPath": {"path": "/var/run/docker.sock"}}],
        "containers": [
            {
                "name": "forbidden",
                "image": "forbidden:1",
                "ports": [{"containerPort": 80, "hostPort": 80}],
                "securityContext": {
                    **dict.fromkeys(("privileged", "allowPrivilegeEscalation"), True),
                    "capabilities": {"add": ["SYS_ADMIN"]},
                },
            }
        ],
    },
}
"""All that the checks are about, to see that they see it."""
# Each call reads the definitions of a version anew, which are megabytes.
utils.schema_contents = functools.cache(utils.schema_contents)


def main(folder: Path) -> int:
    """Exit status 1 when something is wrong."""
    documents = [
        (path.name, document)
        for path in sorted(folder.glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
    ]
    assert documents, f"no manifests in {folder}"
    different = {json.dumps(document, sort_keys=True): (name, document) for name, document in documents}
    kinds = Counter(document["kind"] for _, document in different.values())
    troubles = [*_untold(different.values()), *_schemas(different.values()), *_policy(folder)]
    print(f"{len(different)} different manifests of {len(documents)}: {dict(kinds)}")
    print(f"schemas of Kubernetes {VERSIONS[0]} to {VERSIONS[-1]}; {len(RESTRICTED)} checks of checkov's")
    print("\n".join(troubles) or "well")
    return int(bool(troubles))


def _schemas(documents: Any) -> Iterator[str]:
    for version in VERSIONS:
        for name, document in documents:
            if said := _refused(document, version):
                yield f"{name}: {document['kind']}: Kubernetes {version}: {said}"


def _untold(documents: Any) -> Iterator[str]:
    """Whether a check can fail at all: an unknown field in each kind, at its top and in its spec."""
    for document in {each["kind"]: each for _, each in documents}.values():
        for place in ((), ("metadata",), *((("spec",),) if "spec" in document else ())):
            spoilt = copy.deepcopy(document)
            functools.reduce(lambda within, key: within[key], place, spoilt)["unknown"] = 1
            if not _refused(spoilt, VERSIONS[-1]):
                yield f"{document['kind']}: an unknown field {'.'.join((*place, 'unknown'))} is taken"


def _refused(document: dict[str, Any], version: str) -> str:
    try:
        validated = kubernetes_validate.validate(document, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{'.'.join(map(str, error.path))}: {error.message[:300]}"
    except utils.SchemaNotFoundError as error:
        return str(error.message)
    return "" if validated == version else f"there is no schema of that version, only of {validated}"


def _policy(folder: Path) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as other:
        Path(other, "pod.yaml").write_text(yaml.safe_dump(FORBIDDEN))
        seen = {each["check_id"] for each in _failed(Path(other))}
    yield from (
        f"checkov does not see where it is not so: {RESTRICTED[name]} ({name})" for name in RESTRICTED.keys() - seen
    )
    for each in _failed(folder):
        yield f"{each['file_path']}: {each['resource']}: not so: {RESTRICTED[each['check_id']]} ({each['check_id']})"


def _failed(folder: Path) -> list[dict[str, Any]]:
    command = [Path(sys.executable).with_name("checkov"), "--directory", folder, "--framework", "kubernetes"]
    options = ["--check", ",".join(RESTRICTED), "--output", "json", "--skip-download", "--soft-fail"]
    told = subprocess.run([*command, *options], check=True, capture_output=True, text=True)
    results = json.loads(told.stdout)["results"]
    assert results["parsing_errors"] == []
    return list(results["failed_checks"])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
