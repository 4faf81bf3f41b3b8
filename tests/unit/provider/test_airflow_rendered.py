"""Template fields in Airflow's own tables, as this Airflow lays them out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from airflow.models import renderedtifields
from airflow.models.taskinstance import TaskInstance
from airflow.utils import session as airflow_session
from sqlalchemy.orm import Session

from elastic_training.airflow.rendered import rendered_fields, rendered_of_run, rendered_of_tasks

BY_TRY = not hasattr(renderedtifields.RenderedTaskInstanceFields, "task_id")
"""Airflow 3.4 and later."""
needs_tries = pytest.mark.skipif(not BY_TRY, reason="this Airflow keeps one row for a task instance")


class Database:
    """In memory, with Airflow's tables that are asked."""

    def __init__(self) -> None:
        self.engine = sa.create_engine("sqlite://", poolclass=sa.pool.StaticPool)
        tables = [renderedtifields.RenderedTaskInstanceFields.__table__, TaskInstance.__table__]
        if BY_TRY:
            from airflow.models.dynamic_region import DynamicRegion

            tables += [renderedtifields.LegacyRenderedTaskInstanceFields.__table__, DynamicRegion.__table__]
        for table in tables:
            with self.engine.begin() as connection:
                connection.execute(sa.schema.CreateTable(table, include_foreign_key_constraints=[]))

    def note(self, run_id: str, task_id: str, map_index: int = -1, try_number: int = 1, **fields: Any) -> None:
        """As Airflow does once a try has rendered its fields."""
        ids = {"dag_id": "nightly", "run_id": run_id, "task_id": task_id}
        kept = renderedtifields.RenderedTaskInstanceFields.__table__
        if not BY_TRY:
            self._put(kept, **ids, map_index=map_index, rendered_fields=fields)
            return
        own = self.attempt(map_index=map_index, try_number=try_number, **ids)
        self._put(kept, id=uuid4(), task_instance_id=own, rendered_fields=fields)

    def attempt(self, map_index: int = -1, **values: Any) -> UUID:
        """A try, of which nothing is rendered yet, takes the place of the one before."""
        table = TaskInstance.__table__
        with self.engine.begin() as connection:
            before = (table.c.task_id == values["task_id"]) & (table.c.region_index == map_index)
            connection.execute(table.update().where(before).values(working_set=None))
        own = uuid4()
        self._put(table, id=own, region_index=map_index, working_set=True, pool="default", **values)
        return own

    def note_before_upgrade(self, run_id: str, task_id: str, **fields: Any) -> None:
        """As an Airflow below 3.4 has done."""
        table = renderedtifields.LegacyRenderedTaskInstanceFields.__table__
        self._put(table, dag_id="nightly", run_id=run_id, task_id=task_id, map_index=-1, rendered_fields=fields)

    def _put(self, table: sa.Table, **values: Any) -> None:
        with self.engine.begin() as connection:
            connection.execute(table.insert().values(**values))


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    made = Database()

    @contextmanager
    def create_session() -> Iterator[Session]:
        with Session(made.engine) as session:
            yield session

    monkeypatch.setattr(airflow_session, "create_session", create_session)
    yield made
    made.engine.dispose()


def test_its_own_come_before_those_of_the_newest_other(database: Database) -> None:
    database.note("monday", "train", workers=1)
    database.note("tuesday", "train", workers=2)
    database.note("monday", "evaluate", workers=9)
    assert rendered_fields("nightly", "monday", "train", -1) == [{"workers": 1}, {"workers": 2}]
    assert rendered_fields("nightly", "wednesday", "train", -1) == [{"workers": 2}]
    assert rendered_fields("nightly", "monday", "prepare", -1) == []


def test_those_of_a_dag_run(database: Database) -> None:
    database.note("monday", "train", 1, workers=2)
    database.note("monday", "train", 0, workers=1)
    database.note("monday", "evaluate", model="m")
    database.note("tuesday", "train", 0, workers=3)
    assert rendered_of_run("nightly", "monday") == [
        ("evaluate", -1, {"model": "m"}),
        ("train", 0, {"workers": 1}),
        ("train", 1, {"workers": 2}),
    ]


def test_those_of_many_tasks(database: Database) -> None:
    ids = [("nightly", day, "train", index) for day in ("monday", "tuesday") for index in (0, 1)]
    for number, (_, run_id, task_id, index) in enumerate(ids):
        database.note(run_id, task_id, index, workers=number)
    assert rendered_of_tasks([*ids[1:3], ("weekly", "monday", "train", 0)]) == {
        ids[1]: {"workers": 1},
        ids[2]: {"workers": 2},
    }
    assert rendered_of_tasks([]) == {}


@needs_tries
def test_of_several_tries_the_last_that_has_rendered(database: Database) -> None:
    ids = ("nightly", "monday", "train", -1)
    for number in (1, 2):
        database.note("monday", "train", try_number=number, workers=number)
    database.attempt(dag_id="nightly", run_id="monday", task_id="train", try_number=3)  # It is queued.
    assert rendered_fields(*ids) == [{"workers": 2}, {"workers": 2}]
    assert rendered_of_run("nightly", "monday") == [("train", -1, {"workers": 2})]
    assert rendered_of_tasks([ids]) == {ids: {"workers": 2}}


@needs_tries
def test_what_is_older_than_the_upgrade(database: Database) -> None:
    ids = ("nightly", "monday", "train", -1)
    database.note_before_upgrade("monday", "train", workers=1)
    assert rendered_fields(*ids) == [{"workers": 1}, {"workers": 1}]
    assert rendered_of_tasks([ids]) == {ids: {"workers": 1}}
    database.note("monday", "train", try_number=2, workers=2)
    assert rendered_fields(*ids)[0] == {"workers": 2}
    assert rendered_of_run("nightly", "monday") == [("train", -1, {"workers": 2})]
