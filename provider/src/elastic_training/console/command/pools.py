"""The command for standing pools: brings them up, resizes them, takes them down, and lists who has what, and why."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from elastic_runtime.documents import to_plain
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.pool.settings import PoolSettings
from elastic_runtime.pool.status import PoolRun, PoolStatus
from elastic_training.console.command.exit_status import DONE
from elastic_training.console.command.numbers import number_of, whole_number_of

if TYPE_CHECKING:
    from elastic_training.settings.training_pool import TrainingPool

_ON = "in pods there: CONNECTION or CONNECTION/NAMESPACE"
_MOST = 1000
_LONGEST = 30 * 86400.0


def add_pool(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    about = "list standing pools, with who has what and why; bring one up, resize or end it"
    pool = commands.add_parser("pool", help=about, description=f"{about[0].upper()}{about[1:]}.")
    pool.add_argument("--json", action="store_true", help="for programs")
    pool.add_argument("--on", metavar="CLUSTER", default="", help=f"{_ON} (default: those of this machine)")
    ways = pool.add_subparsers(dest="way", metavar="up|resize|down")
    up = ways.add_parser("up", help="bring a pool up, or start its keeper again")
    up.add_argument("pool", metavar="NAME")
    up.add_argument("--min", type=_count, default=0, help="workers that stay warm (default: 0)")
    up.add_argument("--max", type=_count, default=1, help="most workers (default: 1)")
    up.add_argument("--gpus", type=_count, default=0, help="of each worker (default: 0)")
    up.add_argument("--idle", type=_seconds, default=600.0, help="seconds until idle workers end (default: 600)")
    up.add_argument(
        "--jupyter", nargs="?", type=_port, const=True, default=False, metavar="PORT", help="a notebook (port: 8888)"
    )
    up.add_argument("--jupyter-python", metavar="PATH", help="interpreter with JupyterLab (default: of the workers)")
    up.add_argument("--image", metavar="IMAGE", help="of pods, with --on")
    up.add_argument("--spot", action="store_true", help="pods on capacity that may be taken back, with --on")
    resize = ways.add_parser("resize", help="change a pool that is up, also while trainings use it")
    resize.add_argument("pool", metavar="NAME")
    resize.add_argument("--min", type=_count, help="workers that stay warm (default: as it is)")
    resize.add_argument("--max", type=_count, help="most workers (default: as it is)")
    resize.add_argument("--idle", type=_seconds, help="seconds until idle workers end (default: as it is)")
    down = ways.add_parser("down", help="end a pool that no run uses")
    down.add_argument("pool", metavar="NAME")
    for way in (up, resize, down):
        way.add_argument("--on", metavar="CLUSTER", default=argparse.SUPPRESS, help=_ON)


def carry_out(arguments: argparse.Namespace) -> int:
    """The exit status. Raises ElasticError."""
    # Airflow, for its configuration, takes seconds to import.
    from elastic_training.clusters.pool import notebook_token
    from elastic_training.clusters.registry import local_settings
    from elastic_training.console.command.output import print_json, print_line
    from elastic_training.settings.training_pool import TrainingPool

    pools = _in_pods(arguments.on) if arguments.on else _here()
    match arguments.way:
        case "up":
            wanted = _wanted(arguments)
            settings = pools.up(wanted)
            print_line(f'pool {wanted.name} is up: {pools.words(settings)}. Tasks write cluster="{wanted.cluster}"')
            if settings.notebook:
                print_line(f"the token of its notebook is in {notebook_token(local_settings()[0], wanted.name)}")
        case "resize":
            name, size = TrainingPool(arguments.pool).name, (arguments.min, arguments.max, arguments.idle)
            if size == (None, None, None):
                raise InvalidSettings("pool resize", "no other size is given", "Add --max, --min or --idle")
            print_line(f"pool {name} is resized: {pools.words(pools.resize(name, *size))}")
        case "down":
            pools.down(TrainingPool(arguments.pool).name)
            print_line(f"pool {arguments.pool} is down")
        case _:
            found = list(pools.list())
            if arguments.json:
                print_json([{**to_plain(status), "kept": kept} for status, kept in found])
                return DONE
            for status, kept in found:
                _print_pool(status, kept=kept)
            if not found:
                print_line(f"no pool is up {pools.where}")
    return DONE


@dataclass(frozen=True, slots=True)
class _Pools:
    """Those of this machine, or of a namespace."""

    where: str
    up: Callable[[TrainingPool], PoolSettings]
    resize: Callable[..., PoolSettings]
    """Of the name, the minimum, the maximum and the idle time; None: as it is."""
    down: Callable[[str], None]
    list: Callable[[], Iterable[tuple[PoolStatus, bool]]]
    """Each with whether it has a keeper, as far as that is known."""
    words: Callable[[PoolSettings], str]


def _here() -> _Pools:
    from elastic_training.clusters import pool as pools
    from elastic_training.clusters.registry import local_settings

    root, python = local_settings()

    def up(wanted: TrainingPool) -> PoolSettings:
        settings = pools.have_up(root, python, wanted.name, wanted.spec())
        pools.await_keeper(root, wanted.name)
        return settings

    resize, down, listed = partial(pools.resize, root), partial(pools.take_down, root), partial(pools.list_pools, root)
    return _Pools(f"in {root}", up, resize, down, listed, pools.words)


def _in_pods(cluster: str) -> _Pools:
    from elastic_training.clusters.kubernetes.pools import NamespacePools
    from elastic_training.clusters.registry import check_cluster, has_pods, location, own_name, split_name
    from elastic_training.concurrency.bridge import run

    check_cluster(cluster)
    if not has_pods(place := own_name(cluster)):
        raise InvalidSettings("--on", f"{cluster!r} is no cluster of pods", "Write CONNECTION or CONNECTION/NAMESPACE")
    said, pools = location(cluster), NamespacePools(*split_name(place))
    images = (said.image, said.launcher_image) if said else ()
    return _Pools(
        f"in {cluster}",
        lambda wanted: run(pools.have_up(wanted.pod_pool(*images))),
        lambda *size: run(pools.resize(*size)),
        lambda name: run(pools.take_down(name)),
        lambda: run(pools.list()),
        lambda settings: settings.words,
    )


def _wanted(arguments: argparse.Namespace) -> TrainingPool:
    from elastic_training.settings.training_pool import TrainingPool

    in_pods: dict[str, Any] = {"on": arguments.on}
    if arguments.image:
        in_pods["pods"] = {"image": arguments.image}
    if arguments.spot:
        in_pods["spot"] = True
    sizes = (arguments.min, arguments.max, arguments.gpus, arguments.idle)
    return TrainingPool(arguments.pool, *sizes, arguments.jupyter, arguments.jupyter_python, **in_pods)


def _print_pool(status: PoolStatus, *, kept: bool) -> None:
    from elastic_training.clusters.pool import notebook_address
    from elastic_training.console.command.output import print_line, print_table

    settings = status.settings
    stands = f"{status.warm - status.free} of {settings.maximum} workers train" if kept else "its keeper is gone"
    print_line(f"pool {settings.name}: {stands}, {status.free} are warm and free")
    if status.trouble:
        print_line(f"workers do not come: {status.trouble}")
    if address := notebook_address(settings):
        print_line(f"its notebook is at {address}")
    if status.runs:
        print_table(("RUN", "PRIORITY", "HAS", "WISHES", "WHY"), [_row(each) for each in status.runs])


def _row(each: PoolRun) -> tuple[object, ...]:
    greedy = f" (up to {each.maximum})" if each.greedy else ""
    return (
        each.run,
        each.priority,
        len(each.workers),
        f"{each.wanted}{greedy}",
        each.reason or "has what it wishes for",
    )


def _count(word: str) -> int:
    return whole_number_of("workers or GPUs", word, _MOST, least=0)


def _port(word: str) -> int:
    return whole_number_of("port", word, 65535, least=1024)


def _seconds(word: str) -> float:
    return number_of("seconds", word, _LONGEST, zero=True)
