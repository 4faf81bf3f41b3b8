"""A learning rate for a batch that grows with the world; the rules and their sources are in :mod:`.rates`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from elastic_runtime.training.rates import Ramp, RateScaling, ScalingRule, factor, next_ramp
from elastic_runtime.world import Place, current_world


class WorldScaling:
    """Multiplies learning rates by how the world, and with it the batch, compares to the one they were chosen for.

    For trainings in which each rank keeps its own batch size. With ``GlobalBatches`` the batch does not change, and
    neither should the rate. Give it to the state, so that newcomers and resumed runs know where a warm-up stands::

        scaling = WorldScaling(base=2, rule="linear", warmup=200)
        state = DurableState(model=model, optimizer=optimizer, scaling=scaling)
        ...
        with scaling.applied(optimizer, state.step + 1):
            optimizer.step()

    Args:
        base: world size for which the learning rate was chosen.
        rule: ``linear`` or ``sqrt``.
        warmup: steps over which a larger rate is come to, after each growth and at the start; 0: at once.
        world: has the world's size; None: the engine's.

    Raises:
        InvalidSettings: an argument cannot work.
    """

    def __init__(
        self,
        base: int,
        rule: ScalingRule | str = ScalingRule.LINEAR,
        warmup: int = 0,
        *,
        world: Place | None = None,
    ) -> None:
        known = rule if rule not in tuple(ScalingRule) else ScalingRule(rule)
        self._scaling = RateScaling(base, known, warmup)  # type: ignore[arg-type]  # which refuses what is no rule
        self._world = world
        self._ramp: Ramp | None = None

    def factor(self, step: int) -> float:
        """For the step that is about to be trained, in the world as it is now. Steps go up, or back to a commit."""
        self._ramp = next_ramp(self._scaling, self._ramp, step, (self._world or current_world()).size)
        return factor(self._scaling, self._ramp, step)

    @contextmanager
    def applied(self, optimizer: Any, step: int) -> Iterator[float]:
        """The optimizer's rates multiplied while inside; yields the factor.

        They are put back after, so that a learning-rate scheduler, and what is saved, only ever has those of the base.

        Args:
            optimizer: has ``param_groups``; ``hvd.DistributedOptimizer`` too.
            step: that is about to be trained.
        """
        multiplier = self.factor(step)
        rates = [group["lr"] for group in optimizer.param_groups]
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * multiplier
        try:
            yield multiplier
        finally:
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate

    def state_dict(self) -> dict[str, Any]:
        """Where the present ramp is; three numbers, however often the world has changed."""
        if self._ramp is None:
            return {"ramp": None}
        return {"ramp": {"size": self._ramp.size, "begin": self._ramp.begin, "start": self._ramp.start}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Undo :meth:`state_dict`."""
        ramp = state_dict["ramp"]
        self._ramp = None if ramp is None else Ramp(int(ramp["size"]), int(ramp["begin"]), float(ramp["start"]))
