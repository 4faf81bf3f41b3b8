"""Has scripts for torch wait after steps of their optimizer, also of Horovod's, which has a step inside of its own."""

from __future__ import annotations

from held_steps import count_and_hold
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

_within: list[None] = []


def count(*_: object) -> None:
    _within.pop()
    if not _within:
        count_and_hold()


register_optimizer_step_pre_hook(lambda *_: _within.append(None))
register_optimizer_step_post_hook(count)
