"""Has scripts for torch wait after steps of their optimizer; for warm processes."""

from __future__ import annotations

from held_steps import count_and_hold
from torch.optim.optimizer import register_optimizer_step_post_hook

register_optimizer_step_post_hook(lambda *_: count_and_hold())
