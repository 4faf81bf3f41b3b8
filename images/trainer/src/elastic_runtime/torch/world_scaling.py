"""A learning rate for a batch that grows with the world; the rules and their sources are in :mod:`.rates`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from elastic_runtime.training.rates import Ramp, RateScaling, ScalingRule, factor, next_ramp
from elastic_runtime.world import Place, current_world


class WorldScaling:
    """Scale learning rates with the world, and so the batch, relative to the one that they were chosen for.

    Use it if each rank keeps its batch size. With ``GlobalBatches``, the batch does not change, and the rate should not
    either. Give it to the state, so that new ranks and resumed runs know the position in a warm-up::

        scaling = WorldScaling(base=2, rule="linear", warmup=200)
        state = DurableState(model=model, optimizer=optimizer, scaling=scaling)
        ...
        with scaling.applied(optimizer, state.step + 1):
            optimizer.step()

    Args:
        base: World size for which the learning rate was chosen.
        rule: ``linear`` or ``sqrt``.
        warmup: Steps until a larger rate is reached, after each growth and at the start. 0: at once.
        world: World with its size. None: the engine's.

    Raises:
        InvalidSettings: an argument is invalid.
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
        """Return the factor for the next step, in the present world. Steps go up, or back to a commit."""
        self._ramp = next_ramp(self._scaling, self._ramp, step, (self._world or current_world()).size)
        return factor(self._scaling, self._ramp, step)

    @contextmanager
    def applied(self, optimizer: Any, step: int) -> Iterator[float]:
        """Multiply the optimizer's rates within the block, and yield the factor.

        They are restored afterwards, so schedulers and checkpoints only ever have the rates for ``base``.

        Args:
            optimizer: Optimizer with ``param_groups``, such as ``hvd.DistributedOptimizer``.
            step: Step that is trained next.
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
        """Continue the ramp that :meth:`state_dict` has recorded, or none."""
        ramp = state_dict["ramp"]
        self._ramp = None if ramp is None else Ramp(int(ramp["size"]), int(ramp["begin"]), float(ramp["start"]))
