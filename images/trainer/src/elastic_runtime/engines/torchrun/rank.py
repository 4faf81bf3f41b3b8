"""A rank's process: ``env://`` finds the others over its line to the agent; all else is as under torchrun."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from functools import cache, wraps
from typing import Any
from urllib.parse import parse_qs, urlsplit

from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import default_pg_timeout
from torch.optim.optimizer import register_optimizer_step_post_hook
from typing_extensions import override

from elastic_runtime.engines.one_world import OneWorld
from elastic_runtime.engines.torch import counting
from elastic_runtime.engines.torch.channel import Channel
from elastic_runtime.engines.torch.peers import PlaceTaken, prove_peers
from elastic_runtime.engines.torch.rank import Rank, collectives_begun
from elastic_runtime.engines.torch.store import AgentStore
from elastic_runtime.engines.torch.world import TorchWorld
from elastic_runtime.engines.torchrun.extension_locks import take_over_stale_locks
from elastic_runtime.logs import script_logger
from elastic_runtime.protocol.rank_link import OWN_LOCAL_RANK, RUN_NAME, LocalRankRead, RankLink, shared_link
from elastic_runtime.script.leaving import call_back
from elastic_runtime.script.standing import ledger
from elastic_runtime.script.unjoined import stepped

log = script_logger(__name__)


class TorchrunWorld(OneWorld, TorchWorld):
    """One world for this process, made by ``init_process_group()``, and ended with it."""

    size_variable = "WORLD_SIZE"

    @override
    def prepare(self) -> None:
        if _serve_env():
            prove_peers(_abort)
        _keep_process_groups()
        take_over_stale_locks()

    def this_rank(self) -> Rank:
        """Return this rank as if it were started by hand in torchrun's world: nothing lasts from world to world."""
        return _alone()


@cache
def _alone() -> Rank:
    return Rank(RankLink(None))


@cache
def _serve_env() -> bool:
    """Have ``env://`` find the others by the store of this world, in the launcher.

    Returns False where somebody has started the script by hand: then there is no launcher.
    """
    link = shared_link()
    if not link.connected:
        return False
    channel = Channel(link, lambda _serial: None, lambda: None)
    stores: list[AgentStore] = []

    def rendezvous(url: str, timeout: timedelta = default_pg_timeout, **_more: Any) -> Iterator[tuple[Store, int, int]]:
        said = parse_qs(urlsplit(url).query)
        rank, size = (int(said.get(name.lower(), [os.environ[name]])[0]) for name in ("RANK", "WORLD_SIZE"))
        # A script may end its process group and make another, which must not find what the first has left.
        stores.append(AgentStore(channel, timeout))  # torch holds the part in C++ alone, which cannot do without this.
        yield PrefixStore(f"env/{len(stores)}", stores[-1]), rank, size
        raise RuntimeError("a process under this engine is in one world alone")

    os.environ.setdefault("TORCHELASTIC_RUN_ID", os.environ.get(RUN_NAME, ""))
    # torch refuses to register a scheme that is there; dist.rendezvous is the function of that name.
    sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers["env"] = rendezvous
    # A script has no commits at which to call what on_notice was given; between two steps is where it can be.
    register_optimizer_step_post_hook(lambda *_: call_back())
    register_optimizer_step_post_hook(lambda *_: stepped())
    ledger().collectives = collectives_begun
    counting.watch_collectives()
    channel.connected()
    if OWN_LOCAL_RANK in os.environ:
        link.send(LocalRankRead())
    return True


def _abort(error: PlaceTaken) -> None:
    """End this process, as Gloo does where it loses a peer: the run begins again at the newest checkpoint."""
    log.error("%s", error)
    os.abort()


@cache
def _keep_process_groups() -> None:
    """Until this process ends, also those that the script destroys.

    The last reference to one of Gloo's may go with a ``c10d::Reducer``, whose end waits for Gloo's threads and holds
    Python's lock; and such a thread waits for that lock, to free the tensors of the last collective (torch 2.13,
    pytorch/pytorch#56297). A script that ends right after a collective hung, five times in twelve.
    """
    kept: list[Any] = []
    make = distributed_c10d._new_process_group_helper

    @wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        group = make(*args, **kwargs)
        kept.append(group)
        return group

    distributed_c10d._new_process_group_helper = made


WORLD = TorchrunWorld()
