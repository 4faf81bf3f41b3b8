"""From the name that a run's spec gives (``engine: horovod``) to the engine.

Other distributions add theirs by an entry point in the group ``elastic_runtime.engines``: the name, and
``module:object`` of an :class:`~elastic_runtime.engines.base.Engine`. Only the engine that is asked for is imported.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from elastic_runtime.engines.base import Engine
from elastic_runtime.errors import InvalidSettings

GROUP = "elastic_runtime.engines"
_OWN = {
    name: EntryPoint(name, f"elastic_runtime.engines.{name}:ENGINE", GROUP)
    for name in ("horovod", "horovodrun", "torch", "torchrun")
}


def find_engine(name: str) -> Engine:
    """The engine of that name; ours goes before another distribution's of the same name.

    Raises:
        InvalidSettings: no engine has that name, or it cannot be imported.
    """
    # Whoever asks for ours need not wait for a look at every distribution that is installed.
    known = _OWN if name in _OWN else {entry.name: entry for entry in entry_points(group=GROUP)} | _OWN
    if name not in known:
        remedy = f"Write one of {', '.join(sorted(known))}, or install the distribution that has it where the ranks run"
        raise InvalidSettings("engine", f"{name!r} is not an engine that is installed here", remedy)
    try:
        engine: Engine = known[name].load()
    except (ImportError, AttributeError) as error:
        problem = f"{name!r} is installed as {known[name].value}, which cannot be imported: {error}"
        raise InvalidSettings("engine", problem, "Mend that distribution") from error
    return engine
