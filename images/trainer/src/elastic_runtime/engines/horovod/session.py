"""Horovod's ranks in the session of torch's engine: see :mod:`elastic_runtime.engines.torch.session`."""

from __future__ import annotations

from dataclasses import replace

from typing_extensions import override

from elastic_runtime.engines.base import SessionFact, SessionState
from elastic_runtime.engines.horovod.environment import environment_of
from elastic_runtime.engines.torch import worlds
from elastic_runtime.engines.torch.session import TorchSession


class HorovodSession(TorchSession):
    """Of a script that may never call ``hvd.init()``, and whose ranks end one after the other."""

    may_be_alone = True
    prepares = False

    @property
    @override
    def fact(self) -> SessionFact:
        fact, facts = super().fact, self._facts()
        if fact.state is not SessionState.FORMING or not facts.members:
            return fact
        # Nothing tells of a rank that hangs: where none is back, all may be in a long evaluation.
        awaited = worlds.absent(facts, told_broken=self._world.told_broken)
        return replace(fact, awaited=awaited, arrived=tuple(each for each in facts.here if each not in awaited))

    @override
    def _environment(self, rank_id: str, interface: str) -> dict[str, str]:
        return environment_of(rank_id, interface)
