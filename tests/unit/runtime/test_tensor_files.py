"""Trees of tensors as files: what is written is read, here and by the library whose format it is."""

from __future__ import annotations

import io
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from safetensors.torch import load
from torch import nn

from elastic_runtime.errors import InvalidDocument
from elastic_runtime.torch.family import TORCH
from elastic_runtime.training import plain, tensor_files
from elastic_runtime.training.plain import NotPlain
from elastic_runtime.training.trees import outline

TREE = {
    "weights": [torch.arange(6.0).reshape(2, 3), torch.tensor(7), torch.zeros(0, 4, dtype=torch.float16)],
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "wide": torch.complex(torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)),
    "views": (torch.arange(6.0).reshape(2, 3).t(), torch.complex(torch.ones(2), torch.ones(2)).conj()),
    "plain": (None, True, 2**80, 2.5, -0.0, float("inf"), "text", b"\xff", bytearray(b"a"), 1 - 2j, [], {}, ()),
    "of torch": [torch.Size([2, 3]), torch.device("cuda", 1), torch.bfloat16],
    "odd": {1: torch.tensor([255], dtype=torch.uint8), "$tensor": 0, (1, "a"): {3, None}, "b": Counter({2: 5})},
    "ordered": OrderedDict(b=1, a=OrderedDict()),
}


def written(tree: Any) -> bytes:
    stream = io.BytesIO()
    tensor_files.write(TORCH, tree, stream)  # type: ignore[arg-type]
    return stream.getvalue()


def read(data: bytes) -> Any:
    return tensor_files.read(TORCH, io.BytesIO(data), len(data))


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and vars_of(one) == vars_of(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other)


def vars_of(value: object) -> object:
    return getattr(value, "__dict__", None)


def test_what_is_written_is_read() -> None:
    assert same(read(written(TREE)), TREE)


def test_a_module_s_dict_keeps_its_versions() -> None:
    state = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).state_dict()
    assert vars_of(state)
    assert same(read(written(state)), state)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize(
    "kind", sorted(str(kind) for kind in vars(torch).values() if isinstance(kind, torch.dtype) and kind.itemsize)
)
def test_every_type_is_written_or_refused(kind: str) -> None:
    dtype = getattr(torch, kind.removeprefix("torch."))
    try:
        tensor = torch.tensor(list(range(8 * dtype.itemsize)), dtype=torch.uint8).view(dtype)
        tensor_files.check(TORCH, tensor)
    except (RuntimeError, NotPlain, InvalidDocument):
        assert kind.startswith("torch.q"), f"{kind} is refused"
        return
    found = read(written(tensor))
    assert found.dtype is dtype
    assert found.view(torch.uint8).tolist() == tensor.view(torch.uint8).tolist()


def test_the_outline_tells_shapes_without_content() -> None:
    tree, likes, notes = tensor_files.from_outline(TORCH, tensor_files.outline(TORCH, TREE, note="a text"))
    assert [tuple(like.shape) for like in likes][:4] == [(2, 3), (), (0, 4), (2,)]
    assert all(like.is_meta for like in likes)
    assert tree["plain"] == TREE["plain"]
    assert notes == {"note": "a text"}


@pytest.mark.parametrize(
    "value",
    [object(), Path("a"), {frozenset()}, torch.zeros(2).to_sparse(), torch.zeros(2, device="meta")],
    ids=["object", "path", "frozenset", "sparse", "no content"],
)
def test_what_cannot_be_kept_is_refused_beforehand(value: Any) -> None:
    tensor_files.check(TORCH, [[[]]] * 2)
    with pytest.raises(NotPlain):
        tensor_files.check(TORCH, [value])


def test_a_machine_that_is_too_small_is_no_reason_to_take_another_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_layout: tensor_files.Layout) -> torch.Tensor:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    data = written([torch.ones(3)])
    monkeypatch.setattr(TORCH, "empty", refuse)
    with pytest.raises(MemoryError, match="a tensor of 12 bytes"):
        read(data)


@pytest.mark.parametrize("around", [lambda tree: (tree,), lambda tree: [tree], lambda tree: {1: tree}])
def test_so_is_what_is_nested_too_deep(around: Callable[[Any], Any]) -> None:
    tree: Any = torch.ones(1)
    for _ in range(32):
        tree = around(tree)
    tensor_files.check(TORCH, tree)
    assert read(written({"states": {"kept": tree}}))
    with pytest.raises(NotPlain, match="32 containers"):
        tensor_files.check(TORCH, [tree])


def test_plain_values_are_sent_encoded_however_deep_they_are() -> None:
    value: Any = 1
    for _ in range(31):
        value = {(1,): value}
    assert plain.decode(read(written({"plain": plain.encode(value)}))["plain"]) == value


@pytest.mark.parametrize(
    "tree", [{torch.ones(1)}, {torch.ones(1): 1}, [OrderedDict(a=1)]], ids=["set", "key", "attribute"]
)
def test_so_is_a_tensor_where_none_is_looked_for(tree: Any) -> None:
    if isinstance(tree, list):
        tree[0].note = torch.ones(1)
    with pytest.raises(NotPlain, match="a tensor in a set"):
        tensor_files.check(TORCH, tree)


def test_so_are_more_plain_values_than_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_files, "_LARGEST_HEADER", 2000)
    assert read(written([1] * 800)) == [1] * 800
    with pytest.raises(NotPlain, match="bytes of plain values"):
        written([1] * 1000)


def test_a_set_is_written_the_same_however_it_came_to_be() -> None:
    grown = set(range(100))
    grown -= set(range(100)) - {9, 16}
    assert list(grown) != list({9, 16})
    assert written(grown) == written({9, 16})


def test_dicts_of_other_kinds_are_sent_as_they_are_saved() -> None:
    tree, _ = TORCH.from_outline(outline(TORCH, {"kept": defaultdict(list, a=[1.0])}))
    assert tree == {"kept": {"a": [1.0]}}


def test_the_library_loads_a_model_s_file_as_its_state_dict() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).to(torch.bfloat16)
    found = load(written(model.state_dict()))
    assert sorted(found) == sorted(model.state_dict())
    other = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).to(torch.bfloat16)
    other.load_state_dict(found)
    assert torch.equal(other[0].weight, model[0].weight)


def test_the_library_reads_whatever_is_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(written({**TREE, "weights.0": torch.ones(1)}))
    with safetensors.safe_open(tmp_path / "file", framework="pt") as opened:
        assert opened.get_tensor("weights.0").tolist() == [[0, 1, 2], [3, 4, 5]]
        assert opened.get_tensor("weights.0#").tolist() == [1]
        assert opened.get_tensor("wide").shape == (2, 16)
        assert opened.metadata()["format"] == "pt"
