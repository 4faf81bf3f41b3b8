"""A torch that cannot forget the meshes of an earlier world is refused, by name."""

from __future__ import annotations

import pytest
from torch.distributed.tensor import debug

from elastic_runtime.engines.torch.rank import forget_meshes
from elastic_runtime.errors import InvalidSettings


def test_this_torch_forgets() -> None:
    forget_meshes()


def test_an_older_torch_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(debug, "_clear_fast_path_sharding_prop_cache")
    with pytest.raises(InvalidSettings, match=r"does not forget the meshes .* Install torch 2\.11 or newer"):
        forget_meshes()
