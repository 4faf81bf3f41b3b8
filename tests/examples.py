"""How many examples Hypothesis tries of a property: some while one works, many in CI.

Here it draws others in every run, so what the few of one run miss, a later one finds; and a failing one is kept and
tried first (``.hypothesis``). Where ``CI`` is set it draws the same ones for the same test (Hypothesis' own profile
for CI).
"""

from __future__ import annotations

import os

from hypothesis import settings

SOME, MANY = 30, 100
"""Examples of a property, here and where ``CI`` is set."""


def choose() -> None:
    """Call it in a ``conftest.py``, before tests are imported."""
    # On a machine that others use too, an example that is slow once is no failure.
    settings.register_profile("ours", deadline=None, max_examples=MANY if os.environ.get("CI") else SOME)
    settings.load_profile("ours")


def costly() -> settings:
    """Half as many, for properties whose examples take long."""
    return settings(max_examples=settings.default.max_examples // 2)


def rewarding() -> settings:
    """Five times as many, for tests that ask much of each example."""
    return settings(max_examples=settings.default.max_examples * 5)
