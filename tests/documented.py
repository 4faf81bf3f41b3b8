"""The documentation's training scripts and recipes, made whole: what a block leaves out stands around it here.

A block is found by words that it alone has. ``tests/unit/tools/test_documents.py`` holds that each block of a script
has an entry here, or a test that it names. The tests of each place run them twice, the second time from where the
first ended.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / each for each in ("README.md", "SECURITY.md", "CHANGELOG.md")),
]
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Recipe:
    """One block."""

    name: str
    page: str
    words: str
    """That no other block of the page has."""
    place: str
    """Whose tests run it: ``hand``, a script alone; ``sharded``, ranks of the engine torch; ``frameworks``;
    ``tensorflow``."""
    before: str = ""
    after: str = ""
    says: str = ""
    """Its last line of output, each time."""

    def script(self, folder: Path) -> str:
        """The whole, with that folder in the place of the documented one."""
        (block,) = [text for text in blocks(ROOT / self.page) if self.words in text]
        return "\n".join([textwrap.dedent(self.before), block, self.after]).replace("/shared/run", str(folder))


def blocks(page: Path, language: str = "python") -> Iterator[str]:
    """Of a page, in that language."""
    for found in _BLOCK.finditer(page.read_text()):
        if found[2] == language:
            yield textwrap.dedent(found[3])


def python_blocks() -> dict[str, str]:
    """All blocks of Python, by ``page:line``."""
    return {
        f"{page.relative_to(ROOT)}:{text[: found.start()].count(chr(10)) + 2}": textwrap.dedent(found[3])
        for page in PAGES
        for text in [page.read_text()]
        for found in _BLOCK.finditer(text)
        if found[2] == "python"
    }


def dags() -> dict[str, str]:
    """Those of them that are whole DAG files."""
    return {place: block for place, block in python_blocks().items() if "with DAG(" in block}


_TRAINING = """
import horovod.torch as hvd
import torch
from torch.utils.data import TensorDataset

hvd.init()
torch.manual_seed(0)
dataset = TensorDataset(torch.randn(512, 2), torch.randn(512, 1))
model = torch.nn.Linear(2, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.01), model.named_parameters())
epochs = 2

def loss_of(inputs, labels):
    return (model(inputs) - labels).square().mean()
"""
_SHARDED = """
import torch
from torch.utils.data import TensorDataset

dataset = TensorDataset(torch.randn(512, 8), torch.randn(512, 1))

class Transformer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)])
        self.head = torch.nn.Linear(8, 1)

    def forward(self, inputs):
        for block in self.blocks:
            inputs = block(inputs)
        return self.head(inputs)

def loss_of(model, inputs, labels):
    return (model(inputs) - labels).square().mean()
"""
_SHARDS = """
import torch
from elastic_runtime import Shards
from elastic_runtime.torch import DurableState, elastic

def build_model():
    torch.manual_seed(0)
    return torch.nn.Linear(2, 1)

def samples_of(shard):
    return zip(*read(shard))

def read(shard):
    generator = torch.Generator().manual_seed(shard.index)
    return torch.randn(3, 2, generator=generator), torch.randn(3, 1, generator=generator)

def loss_of(model, inputs, labels):
    return (model(inputs) - labels).square().mean()

elastic.init()
model, trained = build_model(), 0
state = DurableState(model=model)
shards = Shards(10, per_step=4, seed=0, state=state)

def train_on(inputs, labels):
    global trained
    trained += len(labels)
"""
_INTERRUPTED = """
import os, pathlib, signal
import torch

torch.manual_seed(0)
_asked, _calls = pathlib.Path("asked"), 0

def interrupted_once():  # after the third call of the first start
    global _calls
    _calls += 1
    if _calls == 3 and not _asked.exists():
        _asked.touch()
        os.kill(os.getpid(), signal.SIGTERM)
"""
RECIPES = [
    Recipe(
        "micro batches", "docs/batches.md", "MicroBatches(dataset", "hand", _TRAINING,
        "train(state)\nprint(f'step {state.step}')", "step 20",
    ),
    Recipe(
        "world scaling", "docs/batches.md", "WorldScaling(base=2", "hand", _TRAINING,
        "train(state)\nprint(f'step {state.step} epoch {state.epoch}')", "step 32 epoch 2",
    ),
    Recipe("horovod", "docs/training-script.md", "best=float(", "tests/local/test_training_script.py"),
    Recipe(
        "load_checkpoint", "docs/training-script.md", "load_checkpoint(uri)", "hand",
        _TRAINING + """
import pathlib
from elastic_runtime.torch import DurableState
store = pathlib.Path("of its own").absolute()
with DurableState(model=model, checkpoint=store.as_uri()) as state:
    state.commit()
uri = max(store.glob("ckpt-*")).as_uri()
trained = model.weight.tolist()
torch.nn.init.zeros_(model.weight)
""",
        "assert model.weight.tolist() == trained", "",
    ),
    Recipe(
        "load_file", "docs/checkpoints.md", "load_file(path)", "hand",
        _TRAINING + """
import pathlib
from elastic_runtime.torch import DurableState
store = pathlib.Path("of its own").absolute()
with DurableState(model=model, checkpoint=store.as_uri()) as state:
    state.commit()
path = max(store.glob("ckpt-*")) / "model.safetensors"
trained = model.weight.tolist()
torch.nn.init.zeros_(model.weight)
""",
        "assert model.weight.tolist() == trained", "",
    ),
    Recipe(
        "make_durable", "docs/training-script.md", "make_durable(hvd", "hand", _TRAINING,
        "while state.epoch < 3:\n    state.epoch += 1\n    state.commit()\n"
        "state.finish()\nprint(state.epoch, state.step)",
        "3 2",
    ),
    Recipe(
        "on_notice", "docs/training-script.md", "@on_notice", "hand",
        _TRAINING + "\ndef evaluate():\n    print('evaluated')\n", "", "evaluated",
    ),
    Recipe(
        "busy", "docs/training-script.md", "at_most=3600", "hand",
        "model, evaluate = 'a model', print",
        says="a model",
    ),
    Recipe(
        "outputs", "docs/training-script.md", "figure.savefig", "hand",
        "class figure:\n    savefig = staticmethod(lambda path: path.write_text('drawn'))\n",
        "print(sorted(path.name for path in outputs().iterdir()))", "['loss.png']",
    ),
    Recipe(
        "torch", "docs/training-script.md", "model = build_model()", "hand",
        """
        import torch
        from torch.utils.data import TensorDataset

        dataset = TensorDataset(torch.randn(512, 2), torch.randn(512, 1))

        def build_model():
            torch.manual_seed(0)
            return torch.nn.Linear(2, 1)

        def loss_of(model, inputs, labels):
            return (model(inputs) - labels).square().mean()
        """,
        "print(f'step {state.step}')", "step 20",
    ),
    Recipe(
        "sharded", "docs/training-script.md", "ShardedState(build)", "sharded", _SHARDED,
        "print(f'step {state.step}')", "step 20",
    ),
    Recipe("parts of a DataFrame", "docs/spark.md", "parquet.read_table", "tests/spark_dataframe/test_train.py"),
    Recipe("shards", "docs/shards.md", "def add_up", "hand", _SHARDS, "print(f'step {state.step}')", "step 625"),
    Recipe(
        "shards in a loader", "docs/shards.md", "IterableDataset", "hand", _SHARDS + "begun = state.step\n",
        "assert trained == (0 if begun else 30)\nprint(f'step {state.step}')", "step 3",
    ),
    Recipe(
        "shards in tf.data", "docs/shards.md", "from_generator", "tensorflow",
        """
        import horovod.tensorflow as hvd
        import tensorflow as tf
        from elastic_runtime import Shards
        from elastic_runtime.tensorflow import DurableState

        hvd.init()
        trained, state = 0, DurableState(tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)]))
        shards = Shards(10, per_step=4, seed=0, state=state)

        def samples_of(shard):
            return [([float(shard.index), 0.0], 1.0)] * 3

        def train_on(inputs, labels):
            global trained
            trained += len(labels)
        """,
        "print(f'step {state.step}, {trained} samples')", "step 3, 30 samples",
    ),
    Recipe(
        "asynchronous shards", "docs/shards.md", "meeting.meet()", "hand", _SHARDS,
        "print(f'{state.shards[0]} shards')", "1000 shards",
    ),
    Recipe(
        "a stream of shards", "docs/shards.md", "def available", "hand",
        _SHARDS + """
optimizer, looks = torch.optim.SGD(model.parameters(), lr=0.01), 0

def newest_offset():
    global looks
    looks += 1
    return 9000 * min(looks, 3)

def is_closed():
    return looks >= 3

def read_range(begin, end):
    return torch.randn(3, 2), torch.randn(3, 1)

def add_up(model):
    pass
""",
        "print(f'{state.shards[0]} shards')", "27 shards",
    ),
    Recipe(
        "a folder of shards", "docs/shards.md", "Folder(", "hand",
        """
        import pathlib
        from elastic_runtime.torch import DurableState, elastic

        elastic.init()
        state, folder = DurableState(shards=[]), pathlib.Path("/shared/run/arriving")
        folder.mkdir(exist_ok=True)
        for name in ("1.csv", "2.csv", "_SUCCESS"):
            (folder / name).touch()
        """,
        """
for step in shards:
    list(step)
    state.commit()
print(f'{state.shards[0]} shards')
""", "2 shards",
    ),
    Recipe(
        "lightning", "docs/frameworks.md", "torch.lightning import", "frameworks",
        _INTERRUPTED + """
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        interrupted_once()
        return (self.layer(batch) - batch.sum(1, keepdim=True)).square().mean()

    def on_train_batch_end(self, *_):
        self.trainer.should_stop = self.global_step >= 20

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.05)

model, data = Model(), torch.utils.data.DataLoader(torch.randn(24, 4), batch_size=8)
""",
        "print(f'step {trainer.global_step} of which {_calls} now')",
    ),
    Recipe(
        "transformers", "docs/frameworks.md", "torch.transformers import", "frameworks",
        _INTERRUPTED + """
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback, TrainingArguments

class Words(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        words = torch.arange(index, index + 8) % 32
        return {"input_ids": words, "labels": words}

class Model(LlamaForCausalLM):
    def forward(self, input_ids=None, labels=None, **more):
        interrupted_once()
        return super().forward(input_ids=input_ids, labels=labels, **more)

data = Words()
model = Model(LlamaConfig(
    vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=2, max_position_embeddings=16,
))
arguments = TrainingArguments(
    output_dir="/shared/run", max_steps=20, per_device_train_batch_size=8, use_cpu=True, save_strategy="no",
    report_to=[], disable_tqdm=True,
)
""",
        "print(f'step {trainer.state.global_step} of which {_calls} now')",
    ),
    Recipe(
        "accelerate", "docs/frameworks.md", "torch.accelerate import", "frameworks",
        _INTERRUPTED + """
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
loader = torch.utils.data.DataLoader(torch.randn(56, 4), batch_size=8)

def train_on(batch):
    interrupted_once()
    optimizer.zero_grad()
    accelerator.backward((model(batch) - batch.sum(1, keepdim=True)).square().mean())
    optimizer.step()
""",
        "print(f'step {step} of which {_calls} now')",
    ),
    Recipe(
        "keras", "docs/tensorflow.md", "batches.fit(model)", "tensorflow", after="print(f'step {state.step}')",
        says="step 200",
    ),
    Recipe(
        "keras shards", "docs/tensorflow.md", "meeting.meet()", "tensorflow",
        """
        import numpy as np

        def build_model():
            import tensorflow as tf
            return tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])

        def read(shard):
            return np.full((4, 2), shard.index / 1000, np.float32), np.ones((4, 1), np.float32)
        """,
        "print(f'{state.shards[0]} shards')", "1000 shards",
    ),
    Recipe(
        "keras load_checkpoint", "docs/tensorflow.md", "load_checkpoint(result", "tensorflow",
        """
        import pathlib
        import numpy as np
        import tensorflow as tf
        import elastic_runtime.tensorflow
        import horovod.tensorflow.keras as hvd
        from elastic_runtime.tensorflow import DurableState

        hvd.init()
        model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
        store = pathlib.Path("of its own").absolute()
        with DurableState(model, checkpoint=store.as_uri()) as state:
            state.commit()
        result = {"checkpoint": {"uri": max(store.glob("ckpt-*")).as_uri()}}
        trained = model.get_weights()
        model.set_weights([np.zeros_like(each) for each in trained])
        """,
        "assert all(map(np.array_equal, model.get_weights(), trained))\nassert any(map(np.any, trained))", "",
    ),
]  # fmt: skip
