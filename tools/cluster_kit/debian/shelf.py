"""Images that every node gets, unpacked once for all of them.

A layer lies on this machine once, however many nodes have it: containerd keeps layers in files named by their digest,
which are never written to again, so they can be hard links. What is left for containerd to import is a manifest. So an
image of a gigabyte is in three nodes after seconds, and a new version of its last layer after one.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from cluster_kit.archive import Archive, write_tar
from cluster_kit.errors import ClusterError

_OCI = "application/vnd.oci.image"


@dataclass(frozen=True, slots=True)
class Shelved:
    """The images of one archive."""

    digest: str
    """Of the archive."""
    names: tuple[str, ...]
    layers: tuple[str, ...]
    """Sha256 of each, in hexadecimal."""


class Shelf:
    """Where they lie.

    Args:
        folder: on the file system of the nodes' folders.
    """

    def __init__(self, folder: Path) -> None:
        self._records = folder / "records"
        self._layers = folder / "layers"

    def all(self) -> list[Shelved]:
        """What every node should have."""
        records = [json.loads(path.read_text()) for path in sorted(self._records.glob("*.json"))]
        return [Shelved(each["digest"], tuple(each["names"]), tuple(each["layers"])) for each in records]

    def put(self, archive: Archive) -> Shelved:
        """Lay an archive's images on the shelf, unless they lie there; what had their names before goes."""
        for shelved in self.all():
            if shelved.digest == archive.digest:
                return shelved
        self._records.mkdir(parents=True, exist_ok=True)
        self._layers.mkdir(exist_ok=True)
        digests = self._take_layers(archive)
        shelved = Shelved(archive.digest, archive.names, tuple(dict.fromkeys(digests.values())))
        write_tar(self.manifests(shelved), self._oci_files(archive, digests))
        self._record(shelved).write_text(json.dumps(asdict(shelved)))
        self._tidy(shelved)
        return shelved

    def manifests(self, shelved: Shelved) -> Path:
        """An archive of all but the layers, for containerd to import."""
        return self._records / f"{shelved.digest}.tar"

    def layer(self, digest: str) -> Path:
        """File of a layer."""
        return self._layers / digest

    def _record(self, shelved: Shelved) -> Path:
        return self._records / f"{shelved.digest}.json"

    def _take_layers(self, archive: Archive) -> dict[str, str]:
        """Digest of each layer by its name in the archive; what is new is copied here."""
        known: dict[str, str] = {}
        for image in archive.images:
            # An uncompressed layer's digest stands in the configuration: one that is here need not be read.
            promised = json.loads(archive.content(image.config))["rootfs"]["diff_ids"]
            pairs = zip(image.layers, (each.removeprefix("sha256:") for each in promised), strict=True)
            known.update({name: digest for name, digest in pairs if self.layer(digest).exists()})
        names = dict.fromkeys(name for image in archive.images for name in image.layers)
        return known | dict(archive.extract([name for name in names if name not in known], self._layers))

    def _oci_files(self, archive: Archive, digests: dict[str, str]) -> dict[str, bytes]:
        """An OCI image layout (https://github.com/opencontainers/image-spec), its layers excepted."""
        files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}
        index = []
        for image in archive.images:
            config = archive.content(image.config)
            layers = [self._descriptor(digests[name]) for name in image.layers]
            manifest = {
                "schemaVersion": 2,
                "mediaType": f"{_OCI}.manifest.v1+json",
                "config": _blob(f"{_OCI}.config.v1+json", config),
                "layers": layers,
            }
            encoded = json.dumps(manifest).encode()
            for data in (config, encoded):
                files[f"blobs/sha256/{hashlib.sha256(data).hexdigest()}"] = data
            for name in image.names:
                entry = _blob(manifest["mediaType"], encoded)
                index.append(entry | {"annotations": {"io.containerd.image.name": full_name(name)}})
        files["index.json"] = json.dumps({"schemaVersion": 2, "manifests": index}).encode()
        return files

    def _descriptor(self, digest: str) -> dict[str, object]:
        path = self.layer(digest)
        with path.open("rb") as stream:
            compressed = stream.read(2) == b"\x1f\x8b"
        kind = f"{_OCI}.layer.v1.tar{'+gzip' if compressed else ''}"
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": path.stat().st_size}

    def _tidy(self, newest: Shelved) -> None:
        for old in self.all():
            if old.digest != newest.digest and set(old.names) <= set(newest.names):
                self._record(old).unlink()
                self.manifests(old).unlink()
        used = {digest for shelved in self.all() for digest in shelved.layers}
        for path in self._layers.iterdir():
            if path.name not in used:
                path.unlink()


def full_name(name: str) -> str:
    """As a kubelet asks containerd for it. Raises ClusterError for a name that leaves the registry to be guessed."""
    first, slash, _ = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return name
    raise ClusterError(f"the image {name} names no registry; tag it localhost/{name}, which no node tries to pull")


def _blob(kind: object, data: bytes) -> dict[str, object]:
    return {"mediaType": kind, "digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}
