"""The training of ``doubles.py`` as torchrun knows it: ``env://``, and a checkpoint of its own when it is signalled."""

import signal
import sys
import time
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist
from exact_sums import BATCH, SAMPLES, build, dataset, gradient
from pace import Pace
from parallel_gradients import Given, total
from torch.nn.parallel import DistributedDataParallel

from elastic_runtime.torch import report

STEPS = -(-SAMPLES // BATCH)


class Checkpointed:
    """Model and optimizer after so many steps, as the file has them."""

    def __init__(self, pace: Pace) -> None:
        self.model = build()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.step, self._asked = 0, False
        self._file = Path(pace.folder, "checkpoint.pt")
        if self._file.exists():
            self.step, model, optimizer = torch.load(self._file)
            self.model.load_state_dict(model)
            self.optimizer.load_state_dict(optimizer)
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self._asked = True

    def commit(self) -> None:
        """Between two steps: if any rank was asked to, all end here."""
        asked = torch.tensor(float(self._asked))
        dist.all_reduce(asked, op=dist.ReduceOp.MAX)
        if asked:
            if dist.get_rank() == 0:
                state = self.step, self.model.state_dict(), self.optimizer.state_dict()
                torch.save(state, part := self._file.with_suffix(".part"))
                part.replace(self._file)
            sys.exit(0)

    check_host_updates = commit


def batch(step: int) -> list[int]:
    """Samples of global step ``step``, from 1, whatever the world."""
    epoch, position = divmod(step - 1, STEPS)
    order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch)).tolist()
    return order[position * BATCH : (position + 1) * BATCH][dist.get_rank() :: dist.get_world_size()]


def main() -> None:
    pace = Pace.from_environment()
    pace.door()
    dist.init_process_group("gloo")
    state, data = Checkpointed(pace), dataset()
    parallel = DistributedDataParallel(Given(state.model))
    parallel.register_comm_hook(None, total)
    pace.hold(state)
    while state.step < pace.epochs * STEPS:
        state.optimizer.zero_grad()
        parallel(gradient(state.model, data, batch(state.step + 1))).backward()
        state.optimizer.step()
        state.step += 1
        pace.note(step=state.step, rank=dist.get_rank(), size=dist.get_world_size(), time=time.monotonic())
        report(epoch=float((state.step - 1) // STEPS))
        state.commit()
        pace.hold(state)
    pace.note(done=state.step, weights=[float(w) for p in state.model.parameters() for w in p.detach().flatten()])


main()
