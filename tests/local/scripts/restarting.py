"""The training of ``doubles.py`` as torchrun knows it: ``env://``, and a checkpoint of its own when it is signalled."""

import torch.distributed as dist
from own_checkpoint import Checkpointed, train
from pace import Pace
from parallel_gradients import Given, total
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    pace = Pace.from_environment()
    pace.door()
    dist.init_process_group("gloo")
    state = Checkpointed(pace)
    parallel = DistributedDataParallel(Given(state.model))
    parallel.register_comm_hook(None, total)
    train(pace, state, lambda gradients: parallel(gradients).backward())


main()
