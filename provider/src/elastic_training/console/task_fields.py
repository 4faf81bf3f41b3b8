"""What the list has to know of the tasks of its runs, asked of Airflow's database once for each try."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping

from elastic_training.airflow.rendered import rendered_of_tasks
from elastic_training.concurrency.newest import Newest
from elastic_training.identity.ownership import Owner

log = logging.getLogger(__name__)
MOST = 10_000
"""Tries that are remembered."""
AT_ONCE = 200
"""Tries that are asked for in one question."""
_NAMES = ("cluster", "checkpoint_uri", "checkpoint_conn_id", "price_book")
_LONGEST = 2000
"""Characters of a field; what is longer is none of ours."""


class TaskFields:
    """Remembers them by the owner: they do not change while it owns its run, nor come later. For threads."""

    def __init__(self) -> None:
        self._known: Newest[Owner, Mapping[str, str]] = Newest(MOST)
        self._lock = threading.Lock()

    def of(self, owners: Collection[Owner]) -> dict[Owner, Mapping[str, str]]:
        """Cluster, store and price book as the task has them; nothing where Airflow does not tell."""
        with self._lock:
            found = {each: self._known[each] for each in owners if each in self._known}
        missing = [each for each in dict.fromkeys(owners) if each not in found]
        for begin in range(0, len(missing), AT_ONCE):
            asked = self._asked(missing[begin : begin + AT_ONCE])
            found |= asked
            with self._lock:
                self._known.update(asked)
        return {each: found.get(each, {}) for each in owners}

    def _asked(self, owners: Collection[Owner]) -> dict[Owner, Mapping[str, str]]:
        ids = {each: (each.dag_id, each.run_id, each.task_id, each.map_index) for each in owners}
        try:
            rendered = rendered_of_tasks(set(ids.values()))
        except Exception as error:  # noqa: BLE001  # a database's, Airflow's: the list is one without these
            log.warning("Airflow does not tell the settings of %d runs' tasks: %s", len(ids), type(error).__name__)
            return {}
        return {each: _ours(rendered.get(its, {})) for each, its in ids.items()}


def _ours(fields: Mapping[str, object]) -> dict[str, str]:
    texts = {name: fields.get(name) for name in _NAMES}
    return {name: each for name, each in texts.items() if isinstance(each, str) and len(each) <= _LONGEST}
