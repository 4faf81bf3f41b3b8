"""Observing by the launcher that needs further packages, which are imported only on request."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.observe import ObserveSpec
from elastic_runtime.run.status import Status

if TYPE_CHECKING:
    from elastic_runtime.launcher.scraping import Scraping


def scraping(observe: ObserveSpec, status: Callable[[], Status]) -> Scraping | None:
    """Return the server that answers Prometheus, if it is requested.

    Args:
        observe: what the run asks for.
        status: the present one.

    Raises:
        InvalidSettings: a package is missing, of those that ranks need too, which share the launcher's image; or the
            token cannot be read.
    """
    if observe.tensorboard and find_spec("tensorboardX") is None:
        problem = "tensorboardX is not installed where the launcher runs"
        raise InvalidSettings("observe.tensorboard", problem, "Install elastic-runtime[tensorboard] in the image")
    if observe.prometheus is None:
        return None
    from elastic_runtime.launcher.scraping import Scraping

    return Scraping(observe.prometheus, status)
