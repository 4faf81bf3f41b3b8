"""An elastic state of which each rank has a part: a model under ``fully_shard``, and its optimizer."""

from __future__ import annotations

import gc
import os
import socket
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from typing_extensions import override

from elastic_runtime.checkpoint.checkpoints import Checkpoints, StoredCheckpoint
from elastic_runtime.checkpoint.joint import Joint
from elastic_runtime.clock import utc_now
from elastic_runtime.errors import ElasticError, InvalidSettings, PermanentError
from elastic_runtime.logs import script_logger
from elastic_runtime.printable import printable
from elastic_runtime.protocol.rank_link import WORKER_NAME, RankLink
from elastic_runtime.run.spec import CheckpointSpec
from elastic_runtime.torch.durable import DurableState
from elastic_runtime.torch.family import TORCH
from elastic_runtime.torch.sharded import exchange
from elastic_runtime.torch.sharded.boxes import Catalog, Key, keepers, newest_whole
from elastic_runtime.torch.sharded.exchange import Copying, world_of_parts
from elastic_runtime.torch.sharded.reading import Reading
from elastic_runtime.torch.sharded.resharding import reshard, share_buffers
from elastic_runtime.torch.sharded.stored import is_other, part_writer
from elastic_runtime.torch.sharded.sums import Sums, check_sums, total_sums
from elastic_runtime.torch.sharded.trees import kept_tree, shared_buffers
from elastic_runtime.torch.sharded.versions import Versions
from elastic_runtime.training.checkpointing.parts import part_writers, read_parts
from elastic_runtime.training.checkpointing.writer import Snapshot
from elastic_runtime.training.state.fingerprint import Fingerprint, fingerprint, name_of
from elastic_runtime.training.state.resuming import take_newest
from elastic_runtime.training.trees import tensors_by_path

Build = Callable[[], tuple[torch.nn.Module, torch.optim.Optimizer | None]]
_PERIODIC, _HANDOVER = 1.0, 2.0
_log = script_logger(__name__)


class ShardedState(DurableState):
    """Durable state for a model of which each rank holds a part. For the engine ``torch`` only.

    ::

        def build():
            model = Transformer()
            for block in model.blocks:
                fully_shard(block)
            fully_shard(model)
            return model, torch.optim.AdamW(model.parameters())

        state = ShardedState(build)

    In each world, all ranks call ``build`` again. Its results are ``state.model`` and ``state.optimizer`` until the
    next world. They get the state of the world before, redistributed to the present ranks. At each commit, every rank
    copies its part to host memory, and sends it to another worker's rank, so nothing is lost with a worker. If more
    parts are lost than there are copies of, the run returns to the newest durable checkpoint. All ranks write durable
    checkpoints together, and any number of ranks can read them.

    :meth:`save`, :meth:`commit` and :meth:`finish` are collectives.

    Args:
        build: Function that creates the model on its device, sharded over the present world (``fully_shard``, with a
            mesh of two dimensions for replicas), and its optimizer, or None. It is the same on each rank and in each
            world.
        neighbour_copies: Whether another rank also keeps each rank's part of each commit. It takes three times the
            part's size more of host memory, and the time to send it.
        checkpoint: As for :class:`DurableState`.
        commit_every: As for :class:`DurableState`.
        link: As for :class:`DurableState`.
        clock: As for :class:`DurableState`.
        **attributes: Further values to keep, whole and the same on every rank.

    Raises:
        InvalidSettings: as for :class:`DurableState`, or the engine has no such worlds.
    """

    _redistributes = True
    _agrees_always = True  # Each commit is a collective anyway, and what one was not part of cannot be gone back to.

    def __init__(
        self,
        build: Build,
        *,
        neighbour_copies: bool = True,
        checkpoint: CheckpointSpec | str | None = None,
        commit_every: int = 1,
        link: RankLink | None = None,
        clock: Callable[[], float] = time.monotonic,
        **attributes: Any,
    ) -> None:
        self._build, self._copies_wanted = build, neighbour_copies
        self._versions = Versions()
        self._copying: Copying | None = None
        self._keepers: list[int] = []
        self._commits = self._layout = 0
        self._wanted = 0.0
        self.has_part = False
        """Of the state, which no other rank was given; the engine does not leave such a rank out of a world."""
        self._joint: Joint | None = None
        super().__init__(checkpoint=checkpoint, commit_every=commit_every, link=link, clock=clock, **attributes)
        if not hasattr(self._world, "leaving"):
            problem = "with this engine every rank has the whole model"
            raise InvalidSettings("ShardedState", problem, "Use ElasticTorchOperator, or DurableState")

    # From world to world

    def restore(self) -> None:
        """In the next world all go back to the last commit of which everything is there."""
        super().restore()
        if self._joint is not None:
            self._joint.given_up.set()  # A writer may be lost.

    @override
    def on_same_state(self) -> None:
        self.sync()

    def sync(self) -> None:
        """Shard the newest commit that is whole over this world; a collective."""
        before = self._arrange()
        super().sync()
        if self._verify != "never":
            newest = self._versions.newest
            catalogs = exchange.gather_catalogs(Catalog("", self._versions.kept()))
            check_sums(before, total_sums(newest, catalogs, newest.key, differ=False))
        self._world.maximum([0.0])  # All have their new parts, and copies of them: nobody needs others any more.
        self._versions.keep_only(self._versions.newest.key)

    def _arrange(self) -> Sums:
        """Returns the sums of what was redistributed."""
        before: Sums = {}
        self.model = self.optimizer = None
        gc.collect()  # Their memory, and their process groups with threads and sockets: FSDP2's objects are cycles.
        model, optimizer = self._build()
        mine = Catalog(os.environ.get(WORKER_NAME) or socket.gethostname(), self._versions.kept())
        catalogs = exchange.gather_catalogs(mine)
        key = newest_whole(catalogs)
        if key is None:
            commits = [each.commit for catalog in catalogs for each in catalog.versions]
            model, optimizer = self._begin(model, optimizer, lost=any(commits))
        else:
            before = self._go_on(catalogs, key, model, optimizer)
        share_buffers(self._world, model)
        layouts = [each.layout for catalog in catalogs for each in catalog.versions]
        self._layout = 1 + max(layouts, default=0)
        self._keepers = keepers([each.host for each in catalogs])
        self._copying = Copying(world_of_parts().exchange, self._keepers, self._versions.obtain)
        self.model, self.optimizer = model, optimizer
        return before

    def _go_on(self, catalogs: list[Catalog], key: Key, model: Any, optimizer: Any) -> Sums:
        self._versions.keep_only(key)
        version = self._versions.of(key)
        before = total_sums(version, catalogs, key, differ=True) if self._verify != "never" else {}
        reshard(world_of_parts().exchange, catalogs, key, version, model, optimizer)
        if version is not None:
            self._values.put_back(version.values)
        self._commits = key[0]
        return before

    def _leave_world(self, *, committed: bool) -> None:
        """Whoever leaves gives its part to one that stays, unless that has it already."""
        if not committed:  # Nothing is gone back to.
            self._commits += 1
            self.save()
        serial, told = world_of_parts().leaving
        [newest] = self._world.maximum([float(serial)])
        flags = self._world.maximum([float(serial == newest and rank in told) for rank in range(self._world.size)])
        leaving = [rank for rank, flag in enumerate(flags) if flag]
        staying = [rank for rank, flag in enumerate(flags) if not flag]
        self.has_part = not (staying and flags[self._world.rank])
        receivers = list(range(self._world.size))
        for number, rank in enumerate(leaving):
            if staying and not (self._copies_wanted and self._keepers[rank] in staying):
                receivers[rank] = staying[number % len(staying)]
        if receivers != list(range(self._world.size)):
            version = self._versions.newest
            version.copies += Copying(world_of_parts().exchange, receivers, self._versions.obtain).copy(version.own)

    # Commits

    @override
    def commit(self) -> None:
        self._commits += 1
        super().commit()

    @override
    def _objects(self) -> list[object]:
        return [*super()._objects(), self.optimizer]

    def save(self) -> None:
        """Copy this rank's part, and have another rank keep a copy, too; a collective."""
        super().save()
        if self.model is None or self._copying is None:
            return
        kept = [each.key for each in self._versions]
        self._versions.keep_only(*kept[-1:])
        tree = kept_tree(self.model, self.optimizer)
        version = self._versions.add(self._commits, self._layout, tree, self._values.copied())
        self.has_part = True
        if self._copies_wanted:
            version.copies += self._copying.copy(version.own)

    def _replicated(self) -> Fingerprint:
        """With what every rank has whole of the model and the optimizer, but for buffers."""
        buffers = shared_buffers(self.model)
        tensors = tensors_by_path(TORCH, kept_tree(self.model, self.optimizer)).items()
        mine = {name_of(path): each for path, each in tensors if not isinstance(each, DTensor)}
        trained = {name: each for name, each in mine.items() if name.removeprefix("model.") not in buffers}
        return {**super()._replicated(), **fingerprint(TORCH, trained)}

    # Durable checkpoints

    def _begin(self, model: Any, optimizer: Any, *, lost: bool) -> tuple[Any, Any]:
        """From the newest checkpoint; without one, from the start, if nothing is lost by that."""
        self._commits = 0
        if self._spec is not None and self._checkpoints is not None:
            reading = Reading(self._checkpoints, self._world, model, optimizer)
            if reading.follow() if self._world.rank else self._lead(reading, self._checkpoints, self._spec):
                return model, optimizer
            if reading.tries:
                model, optimizer = self._build()  # Nothing of what could not be read.
        if lost:
            world_of_parts().state_lost()
            advice = "" if self._spec else ". Give the run a checkpoint_uri"
            advice += "" if self._copies_wanted else ". Keep neighbour_copies"
            raise PermanentError(f"parts of the state are lost with their ranks, and no checkpoint is there{advice}")
        return model, optimizer

    def _lead(self, reading: Reading, checkpoints: Checkpoints, spec: CheckpointSpec) -> bool:
        def read(stored: StoredCheckpoint) -> dict[str, Any]:
            others = read_parts(self.family, stored, is_other)
            reading.lead(stored)
            return others

        checkpoints.claim()
        try:
            found = take_newest(checkpoints, read, self._values, self._link, own=not spec.resume)
        except InvalidSettings as error:
            reading.end(error)
            raise
        reading.end()
        if found:
            self._receipt.resume(found)
        return bool(found)

    def _resume(self) -> None:
        """All ranks together, where they find that there is nothing to go on from."""

    def _write_wanted(self) -> float:
        wanted, self._wanted = self._wanted, 0.0
        return wanted

    def _begin_write(self, *, handover: bool = False, if_absent: bool = False) -> None:
        """Rank 0 wants it; all do it at the next word that they have with each other."""
        if not if_absent:  # Outside a commit, a rank has no others to write with.
            self._wanted = max(self._wanted, _HANDOVER if handover else _PERIODIC)

    def _write_between(self, handover: bool) -> None:
        """Nothing but a word: a rank alone does not have enough, and ranks agree on a checkpoint at commits."""
        if handover and self._between is not None:
            self._between.overdue.handled()  # Said once for each notice; the next commit handles it.
            age = (utc_now() - self._taken_at).total_seconds()
            _log.warning(
                "a worker will be taken, and the last commit, of step %d, is %.0f s old: a ShardedState is written at "
                "commits alone. If the worker is gone before the next one, its part is its neighbour's copy; if all "
                "are, training goes back to the newest durable checkpoint. Commit within an evaluation, too",
                self._values.step,
                age,
            )

    def _write_agreed(self, wanted: float) -> None:
        if wanted and self._writer is not None:
            self._writer.begin(self._joint_snapshot(), handover=wanted >= _HANDOVER)

    def _joint_snapshot(self) -> Snapshot:
        """Of the last save, on all ranks at once; a collective."""
        assert self._checkpoints is not None
        name = self._checkpoints.new_name(self._values.step, self._taken_at) if self._world.rank == 0 else ""
        name = exchange.broadcast(name.encode(), 0).decode("ascii")
        self._joint = Joint(name, self._world.rank, self._world.size)
        version = self._versions.newest
        writers = part_writer(version, self._world.rank, self._world.size)
        loan = self._values.lend()
        if self._world.rank == 0:
            writers |= part_writers(self.family, loan.tree, self._values.plain)
        version.own.loans += 1

        def give_back() -> None:
            version.own.loans -= 1
            loan.give_back()

        parts = self._serial, self._values.step, self._taken_at, writers
        return Snapshot(*parts, give_back, loan.wait, joint=self._joint, record=self._record())

    def finish(self) -> None:
        """Save, and have it durable when this returns on rank 0; a collective, which begins when all have called it.

        Raises:
            OwnershipLost: the run has a newer owner.
            StoreUnavailable: the last checkpoint could not be written.
        """
        self._settle()
        self._link.end_together(int(self.step), self.on_wait)
        self._commits += 1
        self.save()
        self._receipt.committed(self._values.step, self._world.size)
        self._has_commits = True
        self._is_writer = self._world.rank == 0
        if self._writer is not None:
            self._writer.write(self._joint_snapshot())
        self._end()

    def _write_last(self) -> None:
        """What is under way. To write more, one rank alone does not have enough."""
        try:
            if self._between is not None:
                self._between.close()
            if self._writer is not None:
                self._writer.close()
        except ElasticError as error:
            _log.error("a checkpoint of step %d may be missing: %s", self._values.step, printable(error))
