"""Horovod's own examples, which the tests run as they are: a formatter has rewritten them once."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("local/scripts/horovod/pytorch_mnist_elastic.py", "95a6f3d029045bc9"),
        ("local/scripts/horovod/pytorch_synthetic_benchmark_elastic.py", "270fbf0a6980a7db"),
        ("tensorflow/scripts/horovod/tensorflow2_keras_mnist_elastic.py", "585f8a420785115b"),
        ("tensorflow/scripts/horovod/tensorflow2_mnist_elastic.py", "37af54b9c1568481"),
    ],
)
def test_they_are_unchanged(name: str, digest: str) -> None:
    assert hashlib.blake2b((TESTS / name).read_bytes(), digest_size=8).hexdigest() == digest
