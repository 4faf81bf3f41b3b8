"""Jupyter beside the workers, as a user asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.spec import JupyterSpec
from elastic_training import kubernetes_syntax as syntax
from elastic_training.settings.templating import Settings, all_known, is_template
from elastic_training.settings.values import IntOrTemplate, settings_of, whole_number


@dataclass(frozen=True, slots=True)
class Jupyter(Settings):
    """A pod with a Jupyter server, from the run's image, for whoever shows a token. It ends with the run."""

    token: str | Any = ""
    """``"NAME/KEY"`` of a Secret in the run's namespace that holds it: 16 printable ASCII characters or more."""
    port: IntOrTemplate = 8888
    memory: str | Any = "2Gi"
    """That the pod is given."""

    def __post_init__(self) -> None:
        self.known(token="name/key").spec()  # noqa: S106  # where one would be

    @all_known()
    def spec(self) -> JupyterSpec:
        """Return the specification for launcher and pod. Raise InvalidSettings, also for rendered values."""
        spec = JupyterSpec(str(self.token), whole_number("jupyter.port", self.port, least=0), str(self.memory))
        name, _, key = spec.secret.partition("/")
        syntax.object_name("jupyter.token", name)
        syntax.data_key("jupyter.token", key)
        syntax.quantity("jupyter.memory", self.memory)
        return spec


def jupyter_of(value: Jupyter | Mapping[str, Any] | Any, *, pods: bool) -> Any:
    """What an operator was given, as :class:`Jupyter`; None, or what is not known yet, as it is.

    Args:
        value: given, or rendered.
        pods: whether the run is made of pods, as far as that is known.

    Raises:
        InvalidSettings: it cannot be, or there are no pods.
    """
    if is_template(value):
        return value
    if value is None or value == "":
        return None
    if not pods:
        problem = "where this run is, there are no pods, and what runs on this machine is open to its users"
        raise InvalidSettings("jupyter", problem, 'Leave it out, and start "jupyter lab" yourself, or train in pods')
    return settings_of(Jupyter, "jupyter", value, 'Jupyter(token="notebook/token")')
