"""How a learning rate follows a batch that grows with the world: pure functions of the step and the resizes.

With *k* times the batch, an epoch has a *k*-th of the steps. To go as far in it,

* the *linear* rule takes *k* times the rate: Goyal et al. 2017, *Accurate, Large Minibatch SGD*
  (https://arxiv.org/abs/1706.02677), section 2.1;
* the *square-root* rule takes the square root of *k* times the rate, which keeps the variance of a step's update:
  Krizhevsky 2014, *One weird trick for parallelizing convolutional neural networks* (https://arxiv.org/abs/1404.5997);
  Hoffer, Hubara and Soudry 2017, *Train longer, generalize better* (https://arxiv.org/abs/1705.08741).

A larger rate is come to by equal increments over some steps (*gradual warm-up*, Goyal et al., section 2.2), for it does
not hold where the weights change quickly; they propose five epochs at the start of a training. A smaller one is taken
at once: the old one would be too large for the smaller batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from elastic_runtime.errors import InvalidSettings


class ScalingRule(StrEnum):
    """Rule by which the learning rate follows the size of the global batch."""

    LINEAR = "linear"
    SQUARE_ROOT = "sqrt"


@dataclass(frozen=True, slots=True)
class RateScaling:
    """Settings of rate scaling, which do not change during a training.

    Raises:
        InvalidSettings: a value cannot work.
    """

    base: int
    """World size for which the learning rate was chosen, at least 1."""
    rule: ScalingRule
    warmup: int
    """Steps over which a larger rate is come to; 0: at once."""

    def __post_init__(self) -> None:
        for name, least in (("base", 1), ("warmup", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                problem = f"{value!r} is not a whole number of {least} or more"
                raise InvalidSettings(f"WorldScaling.{name}", problem, f"Give {least} or more")
        if self.rule not in tuple(ScalingRule):
            known = " or ".join(repr(rule.value) for rule in ScalingRule)
            raise InvalidSettings("WorldScaling.rule", f"{self.rule!r} is not a rule", f"Give {known}")

    def target(self, size: int) -> float:
        """The factor for a world of that size, once warmed up."""
        ratio = size / self.base
        return ratio if self.rule is ScalingRule.LINEAR else math.sqrt(ratio)


@dataclass(frozen=True, slots=True)
class Ramp:
    """The way from one factor to the next, in one world."""

    size: int
    """Ranks of the world."""
    begin: int
    """First step in it."""
    start: float
    """Factor of the step before."""


def factor(scaling: RateScaling, ramp: Ramp, step: int) -> float:
    """Return the factor of the learning rate.

    Args:
        scaling: how.
        ramp: in which world.
        step: from ``ramp.begin`` on; the target is reached ``scaling.warmup - 1`` steps later.
    """
    target = scaling.target(ramp.size)
    if target <= ramp.start or step - ramp.begin + 1 >= scaling.warmup:
        return target
    return ramp.start + (target - ramp.start) * max(0, step - ramp.begin + 1) / scaling.warmup


def next_ramp(scaling: RateScaling, ramp: Ramp | None, step: int, size: int) -> Ramp:
    """The ramp on which ``step`` is trained: the same, or a new one when the world has changed.

    Args:
        scaling: how.
        ramp: of the step before; None at the very first, which begins at the rate as it was chosen.
        step: about to be trained.
        size: of the world that trains it.
    """
    if ramp is None:
        return Ramp(size, step, 1.0)
    if ramp.size == size:
        return ramp
    return Ramp(size, step, factor(scaling, ramp, step - 1))
