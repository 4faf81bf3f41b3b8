"""Caches of torch about meshes of ranks, in a process whose rank changes between process groups.

A ``DeviceMesh`` is equal to another of the same ranks, whichever of these this process is and whatever its process
groups, and what was worked out for one is used for the other: the results of operations on a ``DTensor`` would be on
the mesh of an earlier world, with this process in its place there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from elastic_runtime.errors import InvalidSettings

_TENSOR = "torch.distributed.tensor"


def forget_meshes() -> None:
    """Clear this thread's caches of meshes before the next world. Does nothing if no ``DTensor`` was used.

    Raises:
        InvalidSettings: this torch has no way to forget.
    """
    if _TENSOR in sys.modules:
        for clear in _caches():
            clear()


def _caches() -> Iterator[Callable[[], Any]]:
    # Tests show which of them matter; torch itself has functions for most, for debugging.
    from torch.distributed.tensor import DTensor, _collective_utils, _redistribute, debug

    if not hasattr(debug, "_clear_fast_path_sharding_prop_cache"):
        problem = f"torch {torch.__version__} does not forget the meshes of worlds that are gone"
        raise InvalidSettings("torch", problem, "Install torch 2.11 or newer")
    yield debug._clear_fast_path_sharding_prop_cache
    propagator = DTensor._op_dispatcher.sharding_propagator
    yield propagator.propagate_op_sharding.cache.cache_clear
    yield type(propagator)._propagate_tensor_meta_cached.cache_clear
    yield _redistribute._gen_transform_infos.cache_clear
    yield _collective_utils.MeshTopoInfo.build_from_mesh.cache_clear
    yield _redistribute.clear_redistribute_planner_cache
