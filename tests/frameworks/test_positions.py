"""Where trainings go on: what the frameworks' helpers find in a folder, and which samples come next. One process."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.torch.accelerate import CheckpointAtRestart
from elastic_runtime.torch.transformers import newest_checkpoint


class Accelerator:
    """What the helper uses of Accelerate's, as one rank of a world."""

    is_main_process = True
    skip_first_batches = staticmethod(skip_first_batches)

    def __init__(self, size: int) -> None:
        self.num_processes = size

    def save_state(self, path: str) -> None:
        Path(path).mkdir(exist_ok=True)

    def load_state(self, path: str) -> None:
        assert Path(path).is_dir()


def loader_of(samples: int, batch: int, rank: int, size: int) -> Any:
    loader = torch.utils.data.DataLoader(range(samples), batch, shuffle=True)  # type: ignore[arg-type]  # it has what a dataset has
    return prepare_data_loader(
        loader, num_processes=size, process_index=rank, put_on_device=False, use_seedable_sampler=True, data_seed=7
    )


def world(folder: Path, size: int, samples: int, batch: int, epochs: int, steps: int) -> tuple[Counter[int], bool]:
    """Samples of all ranks of one that ends after so many steps, and whether the training was over before."""
    used: Counter[int] = Counter()
    over = False
    for rank in reversed(range(size)):  # rank 0 writes, so it is the last to read
        checkpoint = CheckpointAtRestart(Accelerator(size), folder, signal="SIGUSR2")
        step, over = checkpoint.resume(), True
        begun = step
        for data in checkpoint.batches(loader_of(samples, batch, rank, size), epochs):
            used.update(data.tolist())
            step += 1
            if step == begun + steps:
                over = False
                if rank == 0:
                    checkpoint.save(step)
                break
    return used, over


@settings(deadline=None, max_examples=60)
@given(
    st.integers(12, 60), st.integers(1, 4), st.integers(1, 4),
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 9)), max_size=6),
)  # fmt: skip
def test_accelerate_leaves_out_no_sample_and_repeats_less_than_a_step_at_each_change(
    tmp_path_factory: pytest.TempPathFactory, samples: int, batch: int, epochs: int, worlds: list[tuple[int, int]]
) -> None:
    folder, used = tmp_path_factory.mktemp("run"), Counter[int]()
    over = False
    for size, steps in [*worlds, (2, 10**6)]:
        if not over:
            more, over = world(folder, size, samples, batch, epochs, steps)
            used += more
    assert over
    assert min(used[sample] for sample in range(samples)) >= epochs
    # Accelerate itself fills up the last step of an epoch from its beginning: with less than a step of three ranks.
    allowed = epochs * 3 * batch + len(worlds) * 2 * batch
    assert sum(used.values()) - epochs * samples <= allowed


def test_accelerate_goes_on_from_a_checkpoint_without_a_position(tmp_path: Path) -> None:
    """As earlier versions wrote them: by the step, in a world of the same size."""
    (tmp_path / "step-000000007").mkdir()
    checkpoint = CheckpointAtRestart(Accelerator(1), tmp_path, signal="SIGUSR2")
    step = checkpoint.resume()
    assert step == 7
    assert len(list(checkpoint.batches(loader_of(20, 4, 0, 1), epochs=3))) == 15 - 7


def test_accelerate_with_a_loader_that_has_a_position_of_its_own_is_refused(tmp_path: Path) -> None:
    loader = loader_of(20, 4, 0, 1)
    loader.use_stateful_dataloader = True
    checkpoint = CheckpointAtRestart(Accelerator(1), tmp_path, signal="SIGUSR2")
    with pytest.raises(InvalidSettings, match="use_stateful_dataloader"):
        next(checkpoint.batches(loader))


def test_transformers_finds_the_newest_checkpoint_that_is_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output = tmp_path / "output"
    assert newest_checkpoint(output) is None  # a first start
    for step, state in ((2, "{}"), (9, "{}"), (10, '{"global_st'), (11, None)):
        (output / f"checkpoint-{step}").mkdir(parents=True)
        if state is not None:
            (output / f"checkpoint-{step}" / "trainer_state.json").write_text(state)
    (output / "checkpoint-best").mkdir()
    assert newest_checkpoint(str(output)) == str(output / "checkpoint-9")
    assert len(caplog.messages) == 2
