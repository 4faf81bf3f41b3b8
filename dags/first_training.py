"""A first training: a function of this file, which two to four ranks train with, on this machine or in pods.

Nothing else is needed where the ranks run than the trainer's environment, or its image as `make image` builds it, when
`cluster` names an Airflow connection to Kubernetes.
"""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import DAG, Param, task

from elastic_training import __version__
from elastic_training.settings import Workers

PARAMS = {
    "cluster": Param(
        "local", type="string", minLength=1, description="`local`, or a Kubernetes: `CONNECTION[/NAMESPACE]`."
    ),
    "image": Param(
        f"localhost/elastic-training/trainer:{__version__}",
        type="string",
        minLength=1,
        description="Of the pods; not used on this machine.",
    ),
}

with DAG("first_training", schedule=None, catchup=False, params=PARAMS, tags=["elastic-training"]) as dag:

    @task.elastic_horovod(
        workers=Workers(min=1, start=2, max=4), cluster="{{ params.cluster }}", image="{{ params.image }}", retries=1
    )
    def train(rate: float, epochs: int) -> dict[str, float]:
        """Learn which points of a square lie in a circle."""
        import horovod.torch as hvd
        import torch
        from torch import nn
        from torch.utils.data import TensorDataset

        from elastic_runtime.torch import DurableState, GlobalBatches, report

        hvd.init()
        torch.manual_seed(0)
        points = torch.rand(2000, 2) * 2 - 1
        inside = (points.norm(dim=1) < 0.8).float()
        model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        state = DurableState(model=model, optimizer=optimizer)

        @hvd.elastic.run
        def learn(state: DurableState) -> None:
            for batch in GlobalBatches(TensorDataset(points, inside), size=100, seed=0, state=state, epochs=epochs):
                inputs, labels = batch.data
                optimizer.zero_grad()
                loss = nn.functional.binary_cross_entropy_with_logits(model(inputs).squeeze(1), labels)
                (loss * batch.weight).backward()
                optimizer.step()
                state.commit()
                if batch.ends_epoch:
                    report(batch.step, loss=loss)

        learn(state)
        with torch.no_grad():
            right = (model(points).squeeze(1) > 0) == inside.bool()
        return {"accuracy": right.float().mean().item(), "ranks": hvd.size()}

    @task
    def judge(result: dict[str, Any]) -> float:
        """What *train* leaves is the run's result document; what its function has returned is a part of it."""
        accuracy: float = result["returned"]["accuracy"]
        if accuracy < 0.9:
            raise ValueError(f"an accuracy of {accuracy:.3f} after {result['steps']} steps is too little")
        return accuracy

    judge(train(0.05, epochs=10))
