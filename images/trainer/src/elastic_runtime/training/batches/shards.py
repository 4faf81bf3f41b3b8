"""Shards of a data set for whichever rank is free, and each of them once in what is committed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterator, Sequence
from datetime import timedelta
from typing import Any, Literal, cast, get_args

from typing_extensions import override

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.protocol.rank_link import RankLink, shared_link
from elastic_runtime.protocol.shards import MOST_APART, MOST_SHARDS
from elastic_runtime.run.waits import LEAST_STANDSTILL, LONGEST_BUSY
from elastic_runtime.training.batches.position import STEP, BatchPosition, Shares
from elastic_runtime.training.batches.rounds import Round, Rounds
from elastic_runtime.training.batches.streams import Folder, Given, Stream, StreamSteps, Supply
from elastic_runtime.training.batches.taking import Counter, Shard, ShardStep
from elastic_runtime.training.whole_numbers import whole_number
from elastic_runtime.world import Place, World

__all__ = ["Folder", "Round", "Shard", "ShardStep", "Shards"]

MOST = 100_000_000
"""Shards of a data set: an epoch's order takes 8 bytes of memory for each."""
_MAX_SEED = 2**63 - 1
Mode = Literal["synchronous", "asynchronous"]


class Shards(BatchPosition):
    """Iterate over a training's steps, each of ``per_step`` shards, which ranks get as they ask for them.

    A fast rank gets more of a step's shards than a slow one. All ranks add up what they have learned, and commit once a
    step::

        shards = Shards(10_000, per_step=16, seed=0, state=state, epochs=3)
        for step in shards:
            for shard in step:
                (loss_of(read(shard)) / step.size).backward()
            add_up_gradients()
            optimizer.step()
            state.commit()

    Step *s* has the same shards at any world size. The position is an attribute of the state, as for ``GlobalBatches``.
    So a commit covers exactly the shards of its steps, and a rank that is lost leaves none out: the others return to
    the last commit and repeat the step.

    With ``mode="asynchronous"``, each rank trains by itself, and all meet every so many seconds::

        state = DurableState(model=model, shards=[])
        shards = Shards(10_000, mode="asynchronous", state=state)
        for round in shards:
            for shard in round:
                train_on(read(shard))
            average(model, round.meet())
            state.commit()

    Without a launcher, as by hand, ranks divide each step evenly.

    Args:
        count: Shards of the data set, up to 100 million. None: as many as ``names``, or as come.
        names: A name for each shard, such as files' paths, in the same order on all ranks.
        stream: Shards of unknown number: a :class:`Folder`, or a function that returns how many there are so far, and
            whether there will be no more. All ranks call it, several times a second while they wait for shards. Make
            the state with ``shards=[]``.
        per_step: Shards of a step over all ranks, up to 100,000. Use several for each rank. A stream's step may have
            fewer. None with ``mode="asynchronous"``.
        seed: 0 to 2**63 - 1.
        state: A ``DurableState``, or any elastic state with ``step=0``.
        epochs: Number of passes over the shards.
        shuffle: Use a new order in each epoch. A stream keeps its own.
        mode: ``"synchronous"``, or ``"asynchronous"`` for ranks that average what they have learned at meetings. Make
            the state with ``shards=[]``.
        every: Time from one meeting to the next, or for which a step waits until a stream has ``per_step`` shards:
            a timedelta or seconds, up to a minute.
        lease: Time that a rank has for one shard: a timedelta or seconds, up to a day. A rank that takes longer without
            ``renew()`` is stopped, and others get the shard. 0: no limit.
        local: Objects that ranks average with ``mode="asynchronous"``, with ``state_dict`` and ``load_state_dict``, or
            Keras' ``get_weights`` and ``set_weights``. None: the state's ``model``.
        position: Name of the state's attribute that counts the steps. If it is another one than ``step``, the shards
            are in the attribute of that name with ``_shards``.
        world: World with this rank and its size. None: the engine's.
        link: Link to the agent. None: from the environment.

    Raises:
        InvalidSettings: an argument is invalid. While iterating: a commit within a step, a step that was left before
            its end, a round without a meeting, or ranks with different shards.
    """

    counts_samples = False

    def __init__(
        self,
        count: int | None = None,
        *,
        names: Sequence[str] | None = None,
        stream: Stream | None = None,
        per_step: int | None = None,
        seed: int = 0,
        state: Any,
        epochs: int = 1,
        shuffle: bool = True,
        mode: Mode = "synchronous",
        every: timedelta | float = 5.0,
        lease: timedelta | float = LEAST_STANDSTILL,
        local: Sequence[Any] | None = None,
        position: str = STEP,
        world: Place | None = None,
        link: RankLink | None = None,
    ) -> None:
        names = None if names is None else _checked(names)
        if sum(each is not None for each in (count, names, stream)) != 1:
            problem = "there is none of count, names and stream, or more than one"
            raise InvalidSettings("Shards", problem, "Give one of them")
        if stream is not None and not callable(stream):
            raise InvalidSettings("Shards.stream", f"{stream!r:.60} cannot be called", "Give a Folder or a function")
        if mode not in get_args(Mode):
            raise InvalidSettings("Shards.mode", f"{mode!r:.60} is not a mode", f"Give one of {get_args(Mode)}")
        self._is_asynchronous, self._stream, self._names = mode == "asynchronous", stream, names
        if self._is_asynchronous and per_step is not None:
            raise InvalidSettings("Shards.per_step", "asynchronous ranks meet after a time", "Give every instead")
        count = (
            1 if stream is not None else len(names) if names is not None else whole_number("Shards.count", count, MOST)
        )
        per_step = 1 if self._is_asynchronous else whole_number("Shards.per_step", per_step, MOST_SHARDS)
        seed = whole_number("Shards.seed", seed, _MAX_SEED, 0)
        epochs = whole_number("Shards.epochs", epochs, MOST)
        if stream is not None and epochs != 1:
            raise InvalidSettings("Shards.epochs", "a stream is trained on once", "Leave it out")
        super().__init__(
            count, per_step if stream is not None else min(per_step, count), seed, state,
            epochs=epochs, shuffle=shuffle, drop_last=False, position=position, world=world,
        )  # fmt: skip
        said = json.dumps([None if stream is not None else count, per_step, seed, shuffle, names, mode])
        digest = hashlib.sha256(said.encode()).hexdigest()[:32]
        self._counter = Counter(link or shared_link(), position, digest, _seconds("lease", lease, LONGEST_BUSY))
        self._every = _seconds("every", every, MOST_APART)
        self._ways = self._of_position(local) if self._is_asynchronous or stream is not None else None

    @override
    def __len__(self) -> int:
        """Steps of the whole training. Raises TypeError if nobody knows."""
        if self._ways is not None:
            raise TypeError("nobody knows how many steps these shards take")
        return super().__len__()

    def __iter__(self) -> Iterator[Any]:
        """From the step after :attr:`step`, in whichever world: :class:`ShardStep`, or :class:`Round`."""
        return self.through_worlds(self._in_world) if self._ways is None else iter(self._ways)

    def shard(self, index: int) -> Shard:
        """Return that shard of the data set, or of the stream."""
        if self._stream is not None:
            name = getattr(self._stream, "name", None)
            return Shard(index, name(index) if name else "", 0)
        return Shard(index, self._names[index] if self._names else "", self.plan.samples)

    def _of_position(self, local: Sequence[Any] | None) -> Rounds | StreamSteps:
        """Return steps whose shards are an attribute of the state."""
        attribute = "shards" if self.position == STEP else f"{self.position}_shards"
        Given.of(self.state, attribute)
        supply = Supply(self._stream, self.plan.samples * self.plan.epochs, self.state, self._every, self._nth)
        ways = supply, self._counter, self._the_world, lambda: self.step, self.move_to, attribute
        if not self._is_asynchronous:
            return StreamSteps(*ways, self.plan.size)
        if (every := getattr(self.state, "commit_every", 1)) > 1:
            problem = f"the state commits at one in {every} calls alone, so each rank would lose rounds with another"
            raise InvalidSettings("Shards.mode", problem, "Give the state no commit_every: a round is one commit")
        models = [getattr(self.state, "model", None)] if local is None else list(local)
        for each in models or [None]:
            if not (hasattr(each, "load_state_dict") or hasattr(each, "set_weights")):
                problem = f"a {type(each).__name__} has neither load_state_dict nor set_weights"
                raise InvalidSettings(
                    "Shards.local", problem, "Give the state a model, or local=[…] what ranks average"
                )
        return Rounds(*ways, models)

    def _nth(self, number: int) -> Shard:
        """Return the shard that comes after so many, over all epochs."""
        return self.shard(number if self._stream is not None else int(self.plan.batch(number + 1)[0]))

    def _the_world(self) -> World:
        return cast(World, self.world)

    def _in_world(self, shares: Shares) -> Generator[ShardStep, None, None]:
        for number in shares.steps:
            of_step, (epoch, nth) = self.plan.batch(number), divmod(number - 1, self.plan.steps_per_epoch)
            taking = self._counter.taking(number, [""] * len(of_step), self.world)
            ends = nth == self.plan.steps_per_epoch - 1
            step = ShardStep(number, of_step, taking, self.shard, epoch=epoch, ends_epoch=ends)
            self.move_to(number)
            yield step
            step.check_over()


def _checked(names: object) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Sequence) or not 0 < len(names) <= MOST:
        raise InvalidSettings("Shards.names", f"{names!r:.60} is not a list of names", "Give a list of texts")
    for each in names:
        if not isinstance(each, str) or not each:
            raise InvalidSettings("Shards.names", f"{each!r:.60} is not a name", "Give texts that are not empty")
    return tuple(names)


def _seconds(name: str, value: object, most: float) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= most:
        problem = f"{value!r:.60} is not a time from 0 to {most:g} s"
        raise InvalidSettings(f"Shards.{name}", problem, "Give a timedelta or seconds")
    return float(seconds)
