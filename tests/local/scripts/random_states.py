"""Random states of torch's, by Horovod or by torch.distributed: see ``random_checks.py``."""

from __future__ import annotations

import torch
from random_checks import check, main
from random_objects import Kept

from elastic_runtime.torch import DurableState
from elastic_runtime.world import current_world


class Objects(Kept):
    """Kept by a state that every rank has whole."""

    def __init__(self, seed: int, rank: int) -> None:
        super().__init__(seed, rank)
        names = {"model_0": "model", "optimizer_0": "optimizer"}
        self.kept = {names.get(name, name): value for name, value in self.kept.items()}
        self.state = DurableState(**self.kept, step=self.step)


torch.set_num_threads(1)
current_world().enter()
main(lambda seed: check(seed, Objects))
