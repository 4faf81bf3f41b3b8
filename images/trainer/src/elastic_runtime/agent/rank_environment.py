"""The environment that a rank is started with, beside its agent's own."""

from __future__ import annotations

from elastic_runtime.agent import devices
from elastic_runtime.documents import to_json
from elastic_runtime.protocol import rank_link
from elastic_runtime.protocol.wire import StartRank
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.world import WORLD

THE_RUNS_OWN = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
"""Variables of which an engine gives no more than a default."""


def rank_environment(
    spec: RunSpec, order: StartRank, worker: str, slots: int, pools: devices.Pools, world: str
) -> dict[str, str]:
    """What the run gives, what the engine gives, and what helpers in the rank look for.

    Args:
        spec: of the run.
        order: the launcher's.
        worker: the agent's name.
        slots: of this worker.
        pools: its devices.
        world: of the engine, as :data:`WORLD` has it.
    """
    environment = {
        **spec.environment,
        **order.environment,
        **{name: spec.environment[name] for name in THE_RUNS_OWN if name in spec.environment},
        **devices.slot_environment(order.slot, slots, pools),
        **devices.local_environment(order.environment, order.slot, slots, pools),
        WORLD: world,
        rank_link.RUN_NAME: spec.name,
        rank_link.WORKER_NAME: worker,
        rank_link.SLOT: str(order.slot),
        # As long as the launcher gives an agent: it has to miss the rank too, before the others can go on.
        rank_link.PEER_SILENCE: str(spec.timing.agent_silence),
    }
    if spec.fixed_size:
        environment[rank_link.FIXED_SIZE] = "1"
    if spec.checkpoint:
        environment[rank_link.CHECKPOINT] = to_json(spec.checkpoint)
    return environment
