"""The command line of ``tools/cluster``."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster_kit.backend import Backend, NodeWish
from cluster_kit.choice import choose, forget, is_started, remember
from cluster_kit.errors import ClusterError
from cluster_kit.namespaces import make_restricted
from cluster_kit.shell import Progress
from cluster_kit.state import held, state_folder

DESCRIPTION = """\
A real Kubernetes for tests, the demo and benchmarks. One of, in this order:

  kubeconfig  the cluster that KUBECONFIG names, if it answers; never started, stopped or broken from here
  kind        a cluster in Docker, if an engine answers and kind is installed
  debian      on Debian 12, as root: Kubernetes 1.20 from Debian's packages on this machine itself;
              compiled once (six minutes), then kept in ~/.cache/elastic-training/kubernetes
"""
EPILOG = """\
exit status:
  0  done
  1  failed; the message says why
  2  wrong arguments
  3  this machine offers no way to a cluster
  4  the cluster cannot do this (nothing is broken in the cluster of KUBECONFIG)

What runs is kept in a folder of its own in /tmp; ELASTIC_TRAINING_CLUSTER_STATE names another one. All clones of this
repository share one cluster.
"""


def main(words: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit status."""
    arguments = _parser().parse_args(words)
    context = _Context(state_folder(), Progress())
    try:
        action: Callable[[_Context, argparse.Namespace], int | None] = arguments.action
        return action(context, arguments) or 0
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return error.exit_status


@dataclass(frozen=True, slots=True)
class _Context:
    state: Path
    progress: Progress

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else starts or stops anything meanwhile."""
        with held(self.state, on_wait=lambda: self.progress.say("waiting for another tools/cluster")):
            yield

    @contextmanager
    def cluster(self) -> Iterator[Backend]:
        """The one that is up."""
        with self.held():
            backend = choose(self.state, self.progress)
            if backend.starts and not is_started(self.state):
                raise ClusterError("no cluster is up: tools/cluster up")
            yield backend

    def up(self, nodes: Sequence[NodeWish]) -> Backend:
        """Start it; wants to be called while held."""
        backend = choose(self.state, self.progress)
        if backend.starts:
            remember(self.state, backend)
        backend.up(nodes)
        self.progress.say(f"{backend.name}: export KUBECONFIG={backend.kubeconfig}")
        return backend

    def down(self) -> None:
        """End what was started, if anything; wants to be called while held."""
        if is_started(self.state):
            choose(self.state, self.progress).down()
            forget(self.state)
            self.progress.say("down")


def _up(context: _Context, arguments: argparse.Namespace) -> None:
    with context.held():
        context.up([NodeWish.parse(text) for text in arguments.nodes])


def _down(context: _Context, _: argparse.Namespace) -> None:
    with context.held():
        context.down()


def _with(context: _Context, arguments: argparse.Namespace) -> int:
    with context.held():
        ours = not is_started(context.state)
        backend = context.up([])
    # Else what was started would be left behind.
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:  # not held: the command may want to take a node down
        return subprocess.run(arguments.words, env=os.environ | _environment(backend), check=False).returncode
    except FileNotFoundError as error:
        raise ClusterError(f"there is no program {arguments.words[0]}") from error
    finally:
        if ours:
            with context.held():
                context.down()
        signal.signal(signal.SIGTERM, before)


def _status(context: _Context, _: argparse.Namespace) -> None:
    with context.cluster() as cluster:
        print("\n".join(cluster.status()))


def _env(context: _Context, _: argparse.Namespace) -> None:
    with context.cluster() as cluster:
        print("\n".join(f"export {name}={shlex.quote(value)}" for name, value in _environment(cluster).items()))


def _load(context: _Context, arguments: argparse.Namespace) -> None:
    with context.cluster() as cluster:
        cluster.load(arguments.archive)


def _namespace(context: _Context, arguments: argparse.Namespace) -> None:
    with context.cluster() as cluster:
        make_restricted(cluster.kubeconfig, arguments.name)


def _node_down(context: _Context, arguments: argparse.Namespace) -> None:
    with context.cluster() as cluster:
        cluster.node_down(arguments.node)


def _node_up(context: _Context, arguments: argparse.Namespace) -> None:
    with context.cluster() as cluster:
        cluster.node_up(arguments.node)


def _api_down(context: _Context, _: argparse.Namespace) -> None:
    with context.cluster() as cluster:
        cluster.api_down()


def _api_up(context: _Context, _: argparse.Namespace) -> None:
    with context.cluster() as cluster:
        cluster.api_up()


def _environment(backend: Backend) -> dict[str, str]:
    address = backend.host_address()
    told = {"KUBECONFIG": str(backend.kubeconfig), "ELASTIC_TRAINING_CLUSTER_KIND": backend.name}
    return told | ({"ELASTIC_TRAINING_CLUSTER_HOST": address} if address else {})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/cluster",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(action: Callable[[_Context, argparse.Namespace], int | None], about: str) -> argparse.ArgumentParser:
        name = action.__name__.strip("_").replace("_", "-")
        added = commands.add_parser(name, help=about, description=about)
        added.set_defaults(action=action)
        return added

    up = command(_up, "start it, or what of it was taken down; harmless when it is up")
    up.add_argument("nodes", nargs="*", metavar="NODE[:label=value,…]", help="default: node-0 node-1 node-2")
    command(_status, "what is there")
    command(_env, "print exports: KUBECONFIG; ELASTIC_TRAINING_CLUSTER_KIND; …_HOST, where pods reach this machine")
    load = command(_load, "give every node an image; nothing is done for one that is there")
    load.add_argument("archive", type=Path, metavar="IMAGE.tar")
    namespace = command(_namespace, 'make a namespace with Pod Security "restricted"')
    namespace.add_argument("name", metavar="NAME")
    node_down = command(_node_down, "kill a node without a word: its network, kubelet and containers")
    node_up = command(_node_up, "bring a killed node back")
    for each in (node_down, node_up):
        each.add_argument("node", metavar="NODE")
    command(_api_down, "kill the API server; pods go on")
    command(_api_up, "start the API server again")
    with_ = command(_with, "up; run a command with what env prints; down, if it was not up before")
    with_.add_argument("words", nargs="+", metavar="COMMAND")
    command(_down, "end and remove all that up started")
    return parser
