"""A rank under torch.distributed: from one process group to the next, in one process."""

from __future__ import annotations

import functools
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import _set_pg_timeout

from elastic_runtime.engines.gloo_sockets import GlooSockets
from elastic_runtime.engines.through_worlds import ending_with_its_word, into_world, through_worlds
from elastic_runtime.engines.torch import counting, own_group
from elastic_runtime.engines.torch.channel import Channel, StoreTimeout, WorldLost
from elastic_runtime.engines.torch.communicators import abort_communicators, complete_collectives
from elastic_runtime.engines.torch.cutting import Cutting, Standstill
from elastic_runtime.engines.torch.messages import AnotherWanted, EnterWorld
from elastic_runtime.engines.torch.own_group import CONNECTING
from elastic_runtime.engines.torch.parallel import Wrappers
from elastic_runtime.engines.torch.sending import Stuck, watch_waits
from elastic_runtime.engines.torch.store import AgentStore
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.logs import script_logger
from elastic_runtime.protocol.rank_link import LocalRankRead, RankLink, shared_link
from elastic_runtime.script import kept_outputs
from elastic_runtime.script.giving_way import give_way
from elastic_runtime.script.leaving import call_back
from elastic_runtime.script.standing import ledger

_TENSOR = "torch.distributed.tensor"


def forget_meshes() -> None:
    """Have torch forget the meshes of this thread, in which the next world begins; nothing, without a ``DTensor``.

    A ``DeviceMesh`` is equal to another of the same ranks, whichever of these this process is and whatever its process
    groups, and what was worked out for one is used for the other: the results of operations on a ``DTensor`` would be
    on the mesh of an earlier world, with this process in its place there.

    Raises:
        InvalidSettings: this torch has no way to forget.
    """
    if _TENSOR in sys.modules:
        for clear in _caches():
            clear()


def _caches() -> Iterator[Callable[[], Any]]:
    # Tests show which of them matter; torch itself has functions for most, for debugging.
    from torch.distributed.tensor import DTensor, _collective_utils, _redistribute, debug

    if not hasattr(debug, "_clear_fast_path_sharding_prop_cache"):
        problem = f"torch {torch.__version__} does not forget the meshes of worlds that are gone"
        raise InvalidSettings("torch", problem, "Install torch 2.11 or newer")
    yield debug._clear_fast_path_sharding_prop_cache
    propagator = DTensor._op_dispatcher.sharding_propagator
    yield propagator.propagate_op_sharding.cache.cache_clear
    yield type(propagator)._propagate_tensor_meta_cached.cache_clear
    yield _redistribute._gen_transform_infos.cache_clear
    yield _collective_utils.MeshTopoInfo.build_from_mesh.cache_clear
    yield _redistribute.clear_redistribute_planner_cache


LOOK = 0.1
"""Seconds between two looks around of a rank that waits for a world."""
BACKEND = "ELASTIC_TORCH_BACKEND"
"""Environment variable: of the process groups, as ``init_process_group`` takes it. Unset: NCCL for tensors on GPUs, of
which each rank has one; Gloo for others."""
_OF_PEERS = re.compile(r"gloo|ProcessGroup|c10d|NCCL|[Cc]onnection (closed|reset|refused)|[Bb]roken pipe")
_NOBODY: tuple[int, frozenset[int]] = 0, frozenset()
log = script_logger(__name__)


class WorldChanges(BaseException):
    """Ranks come or go: into the next world, from the very commit that was just made.

    A script that catches each ``Exception`` of a step does not catch it. It would stay in a world that others leave.
    """


class Rank:
    """This process.

    Args:
        link: to the agent; without one, a script that somebody starts by hand is in one world for good: torchrun's, if
            that has started it, or one of its own.
    """

    def __init__(self, link: RankLink) -> None:
        self._sockets = GlooSockets(listening=False)
        self._wrappers = Wrappers(self.is_broken)
        self._state: Any = None
        self._in_place = False
        self._changes = 0
        self.alike = 0
        """So many ranks of this world, from 0 on, came to it with the same state; 0: not known."""
        self.leaving = _NOBODY
        """The number of the last word of who leaves this world, and the ranks that it names."""
        self._abandoned: list[Any] = []
        self._store: AgentStore | None = None
        self._trains = threading.get_ident()
        self._cutting = Cutting(self._sockets.cut, lambda: Standstill(self._trains).seconds, self._hung)
        self._link = link
        self._channel: Channel | None = None
        if link.connected:
            ledger().collectives = collectives_begun
            self._channel = Channel(link, self._another, self._broken)
            self._wrappers.watch()
            counting.watch_collectives()
            watch_waits(self.is_broken)

    @property
    def has_peers(self) -> bool:
        """Whether it meets others by what its agent tells."""
        return self._channel is not None

    def enter(self) -> None:
        """Be in a world: in the present one, or in the next that can be connected. A rank that is in none ends."""
        if dist.is_initialized():
            return
        self._trains = threading.get_ident()
        if self._channel is None:
            _by_hand()
        else:
            self._into_next(self._channel)

    def run(self, state: Any, function: Callable[[], Any], *, in_place: bool) -> Any:
        """Through all worlds to the end of the training; see :func:`~elastic_runtime.torch.elastic.run`."""
        self._state, self._in_place = state, in_place
        state.on_hosts_updated(float(self._changes))

        def settled() -> Any:
            result = function()
            self.settle()  # Before the others are told that this rank has ended its training.
            return result

        train = ending_with_its_word(state, settled)
        try:
            self.enter()
            self._set_timeout(own_group.WATCHED_TIMEOUT)
            whole = functools.partial(self._train, train)
            return through_worlds(state, whole, WorldChanges, self.is_loss, self._reset, self._synced)
        finally:
            self._state, self._in_place = None, False

    def change(self) -> None:
        """At a commit that all ranks have just made; see :meth:`~elastic_runtime.world.World.change`.

        Raises:
            WorldChanges: the training function is to be left.
        """
        if not self._in_place:
            raise WorldChanges
        has_same = self._reset()
        into_world(self._state, has_same=has_same)
        self._synced()
        self._wrappers.rebuild_within(has_same=has_same)

    def agrees(self) -> bool:
        """Implement :meth:`~elastic_runtime.world.World.agrees`."""
        return self._channel is None or dist.get_world_size() == 1 or self._channel.agrees()

    def is_broken(self) -> bool:
        """Whether the present world is."""
        return self._channel is not None and self._channel.is_broken

    def settle(self) -> None:
        """Have all collectives behind it that this rank has begun.

        Raises:
            WorldLost: the world is broken, so one may have brought anything.
        """
        if self._channel is None or dist.get_world_size() == 1:
            return
        if complete_collectives() and self._channel.is_broken:
            raise WorldLost("a rank of the world is lost")

    def state_lost(self) -> None:
        """Implement :meth:`~elastic_runtime.torch.sharded.exchange.WorldOfParts.state_lost`."""
        if self._channel:
            self._channel.state_lost()

    def is_loss(self, error: Exception) -> bool:
        """Whether it says that a rank is lost; the others hear of it then."""
        if self._channel is None:
            return False
        if isinstance(error, Stuck):
            # Kept for good, with the thread that is stuck: to take one down would be to wait for that.
            self._abandoned.append((*distributed_c10d._world.pg_map, own_group.own_group()))
        if isinstance(error, WorldLost | Stuck):
            return True
        if not isinstance(error, RuntimeError | StoreTimeout):
            return False
        # Who does not come to a world in time is waited for, or ended, by the launcher, not by each of the others.
        of_peers = isinstance(error, dist.DistError | StoreTimeout) or bool(_OF_PEERS.search(str(error)))
        if of_peers and self._channel.breaks_again_and_again:
            return False
        if of_peers:
            self._channel.peer_lost()
        return of_peers or self._channel.is_broken

    def _train(self, train: Callable[[], Any]) -> Any:
        with self._wrappers.in_training(in_place=self._in_place):
            result = train()
        if self._channel:
            self._channel.done()
        return result

    def _synced(self) -> None:
        if self._channel:
            self._channel.synced()

    def _reset(self) -> bool:
        call_back()
        kept_outputs.world_ends()
        assert self._channel is not None, "or nothing is a loss, and no world changes"
        if self._channel.is_broken:
            self._sockets.cut()
        # Else it stays until all others have left it, too: nobody's last collective is broken off.
        return self._into_next(self._channel)

    def _into_next(self, channel: Channel) -> bool:
        """Returns whether all have the same state there."""
        if not dist.is_initialized():
            forget_meshes()  # Which a newcomer's first time takes long for: nobody waits for it yet.
        while True:
            self._cutting.end()
            has_part = getattr(self._state, "has_part", False)
            place = channel.next_world(self._while_waiting, LOOK, has_part=has_part)
            if place is None:
                give_way(self._link)
            self._cutting.end()  # Once more: others may have said so of the world before only after this rank had left.
            self._destroy()
            if place is None:
                sys.exit(0)
            try:
                has_same = place.same_state and getattr(self._state, "is_replicated", True)
                self._connect(channel, place, has_same=has_same)
                return has_same
            except Exception as error:
                if not self.is_loss(error):
                    raise
                if not isinstance(error, WorldLost):
                    log.warning("rank %d of %d could not connect to its world: %s", place.rank, place.size, error)

    def _connect(self, channel: Channel, place: EnterWorld, *, has_same: bool) -> None:
        self._changes, self.leaving, self.alike = 0, _NOBODY, place.alike
        local = _local(place)
        os.environ.update(RANK=str(place.rank), WORLD_SIZE=str(place.size), **local)
        if int(local["LOCAL_WORLD_SIZE"]) < place.local_size:
            self._link.send(LocalRankRead())  # Or may read it, from the environment.
        distributed_c10d._world.group_count = 0  # A group that failed has been counted, and names are to be the same.
        with self._sockets.connecting(place.size):
            # torch holds the part in C++ alone, and asks it again for further groups: it cannot do without this one.
            store, rank, size = AgentStore(channel, CONNECTING), place.rank, place.size
            self._store = store
            with store.connecting(rank, size):
                dist.init_process_group(_backend(), store=store, rank=rank, world_size=size, timeout=CONNECTING)
                counting.connected()
                own_group.connect(store, rank, size)
        self._set_timeout(own_group.timeout())
        self._sockets.notice_silence()
        self._wrappers.rebuild(has_same=has_same)
        channel.connected()

    def _set_timeout(self, timeout: timedelta) -> None:
        """Of this world's collectives, and of the next ones'."""
        if self._channel is None:
            return  # Nobody looks after a world that is made by hand.
        _set_pg_timeout(timeout)
        own_group.set_timeout(timeout)
        for name in ("default_pg_timeout", "default_pg_nccl_timeout"):  # Of groups that the script makes.
            if getattr(distributed_c10d, name) is not None:
                setattr(distributed_c10d, name, timeout)

    def _destroy(self) -> None:
        self._wrappers.release()
        own_group.let_go()
        if dist.is_initialized():
            dist.destroy_process_group()
        forget_meshes()
        self._sockets.cut()
        self._sockets.forget()

    def _another(self, wanted: AnotherWanted) -> None:
        self._changes, self.leaving = wanted.serial, (wanted.serial, frozenset(wanted.leaving))
        if state := self._state:
            state.on_hosts_updated(float(wanted.serial))

    def _broken(self) -> None:
        self._cutting.begin()
        abort_communicators()

    def _hung(self) -> None:
        """Do what the training thread would while it waits for a world, in another thread: it commits no more."""
        if self._channel:
            self._channel.hung()
        try:
            self._while_waiting()
        except Exception:  # of whatever the script's own objects raise
            log.exception("the last commit of this rank, which hangs, cannot be written")

    def _while_waiting(self) -> None:
        call_back()
        if hasattr(self._state, "on_wait"):
            self._state.on_wait()


def collectives_begun() -> int:
    """Of all process groups of this rank that the script uses; in any thread."""
    groups: list[Any] = list(distributed_c10d._world.pg_map)
    return sum(group._get_sequence_number_for_group() for group in groups)


def _backend() -> str:
    usual = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    return os.environ.get(BACKEND) or usual


def _local(place: EnterWorld) -> dict[str, str]:
    """A rank that sees its own GPU alone has it as number 0, in each world."""
    local = (0, 1) if torch.accelerator.is_available() else (place.local_rank, place.local_size)
    return {"LOCAL_RANK": str(local[0]), "LOCAL_WORLD_SIZE": str(local[1])}


def _by_hand() -> None:
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group(_backend())
    else:
        dist.init_process_group(_backend(), store=HashStore(), rank=0, world_size=1)


@cache
def this_rank() -> Rank:
    """Return the rank of this process."""
    return Rank(shared_link())
