"""Train a small GPT with Megatron-Core, restarted where it was at each change of the workers; on CPUs, by Gloo.

``train_megatron.py --folder FOLDER``. The model is split in two where the world is even. What some ranks save, others
load by its distributed checkpoint, however the model is split there. Of the runtime it has where checkpoints are,
whether all ranks are to write one and end, and the report. Megatron's own optimizers need CUDA.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.optimizer import (
    get_param_id_to_sharded_param_map,
    optim_state_to_sharding_state,
)
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
from megatron.core.transformer.transformer_config import TransformerConfig

from elastic_runtime.torch import report
from elastic_runtime.torch.restarts import RestartRequest, newest_checkpoint, write_checkpoint

BATCH, WORDS, LENGTH = 12, 32, 16
"""Sequences of a step, over all ranks; different words; words of a sequence."""

if not torch.cuda.is_available():  # Megatron-Core asks for these whatever its tensors are on.
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.synchronize = lambda *_: None
    CudaRNGStatesTracker.fork = lambda *_: nullcontext()  # For dropout, of which there is none here.


def gpt(split: int) -> tuple[TransformerConfig, GPTModel]:
    """Over so many ranks."""
    torch.manual_seed(0)
    config = TransformerConfig(
        num_layers=2,
        hidden_size=24,
        num_attention_heads=2,
        tensor_model_parallel_size=split,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        persist_layer_norm=False,
        apply_rope_fusion=False,
    )
    return config, GPTModel(config, get_gpt_layer_local_spec(normalization="RMSNorm"), WORDS, LENGTH)


def states(model: GPTModel, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What this rank has of both, with where it belongs in the whole."""
    of_model, of_optimizer = model.sharded_state_dict(), optimizer.state_dict()
    places = get_param_id_to_sharded_param_map(of_model, model.parameters())
    optim_state_to_sharding_state(of_optimizer, places, exclude_keys=("step",))
    return {"model": of_model, "optimizer": of_optimizer}


def load(model: GPTModel, optimizer: torch.optim.Optimizer, path: Path, step: int) -> None:
    """From a world of any size; a collective."""
    for parameter in model.parameters():  # The optimizer has a state to be loaded into once it has made a step.
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    loaded = dist_checkpointing.load(states(model, optimizer), str(path))
    for of_parameter in loaded["optimizer"]["state"].values():
        of_parameter["step"] = torch.tensor(float(step))
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])


def train(wrapped: DistributedDataParallel, optimizer: torch.optim.Optimizer, step: int) -> torch.Tensor:
    """One step; returns the loss of this rank's share of its sequences."""
    place, places = parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()
    batch = torch.randint(WORDS, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(step))
    words = batch.sort().values.chunk(places)[place]
    positions = torch.arange(LENGTH).expand(len(words), -1)
    later = torch.ones(1, 1, LENGTH, LENGTH).triu(1).bool()
    wrapped.zero_grad_buffer()
    optimizer.zero_grad()
    loss = wrapped(words[:, :-1].contiguous(), positions, later, labels=words[:, 1:].contiguous()).mean()
    loss.backward()
    finalize_model_grads([wrapped])
    for parameter in wrapped.module.parameters():
        parameter.grad = parameter.main_grad
    optimizer.step()
    return loss


def main() -> None:
    """One rank, in one world."""
    options = parse_arguments()
    dist.init_process_group("gloo")
    split = 2 - dist.get_world_size() % 2
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=split)
    request = RestartRequest()
    config, model = gpt(split)
    wrapped = DistributedDataParallel(config, DistributedDataParallelConfig(overlap_grad_reduce=False), model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step = 0
    if found := newest_checkpoint(options.folder):
        path, step = found
        load(model, optimizer, path, step)

    def write(path: Path) -> None:
        path.mkdir(exist_ok=True)
        dist_checkpointing.save(states(model, optimizer), str(path))

    while step < options.steps:
        loss = train(wrapped, optimizer, step)
        step += 1
        report(step, of=options.steps, loss=loss.detach())
        if request.agreed():
            write_checkpoint(options.folder, step, write)
            break
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # Without the end of C++'s own threads.


def parse_arguments() -> argparse.Namespace:
    """Raises SystemExit with what is wrong."""
    parser = argparse.ArgumentParser(description="One rank of a training with Megatron-Core.")
    parser.add_argument("--folder", type=Path, required=True, help="of checkpoints, which every worker sees")
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps")
    return parser.parse_args()


if __name__ == "__main__":  # Writers of its checkpoints are processes that import this file.
    main()
