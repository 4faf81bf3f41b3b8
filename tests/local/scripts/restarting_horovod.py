"""The training of ``restarting.py`` as horovodrun knows it: ``hvd.init()``, and no elastic state."""

import horovod.torch as hvd
import torch
from own_checkpoint import Checkpointed, train
from pace import Pace


def main() -> None:
    pace = Pace.from_environment()
    pace.door()
    hvd.init()
    state = Checkpointed(pace)
    hvd.broadcast_parameters(state.model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(state.optimizer, root_rank=0)

    def give(gradients: list[torch.Tensor]) -> None:
        for parameter, mine in zip(state.model.parameters(), gradients, strict=True):
            parameter.grad = hvd.allreduce(mine, op=hvd.Sum)

    train(pace, state, give)


main()
