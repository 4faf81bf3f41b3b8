"""The image that holds a pod's namespaces open while its containers come and go: no registry has to be asked for it."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path

from cluster_kit.archive import write_tar
from cluster_kit.shell import run

NAME = "localhost/pause:1"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_SOURCE = """
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void stop(int number) { _exit(0); }
static void reap(int number) { while (waitpid(-1, 0, WNOHANG) > 0); }
int main(void) {
    signal(SIGTERM, stop);
    signal(SIGINT, stop);
    signal(SIGCHLD, reap);
    for (;;) pause();
}
"""


def make_pause_image(archive: Path, machine: str) -> None:
    """Compile a static program of a few kilobytes and write it as a docker-archive.

    Args:
        archive: file to write.
        machine: as ``os.uname().machine`` says.
    """
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "pause")
        run("gcc", "-static", "-Os", "-x", "c", "-", "-o", program, text=_SOURCE)
        layer_file = Path(folder, "layer.tar")
        write_tar(layer_file, {"pause": program.read_bytes()}, mode=0o755)
        layer = layer_file.read_bytes()
    config = {
        "architecture": _ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": {"Entrypoint": ["/pause"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [NAME], "Layers": ["layer.tar"]}]
    files = {"config.json": json.dumps(config), "manifest.json": json.dumps(manifest)}
    write_tar(archive, {"layer.tar": layer} | {name: text.encode() for name, text in files.items()})
