"""No event before Airflow has seen that the task was deferred.

A deferred task's process lingers: Airflow's supervisor notices its end only with its next heartbeat, ``[workers]
min_heartbeat_interval`` seconds later. When the trigger fires meanwhile, the task is queued anew, and the scheduler
takes the late word of the first process ("success") for one about the second: it fails a task that is only queued
("the executor reported that the task instance finished with state success, but the task instance's state attribute is
queued"; ``SchedulerJobRunner.process_executor_events`` in Airflow 3.3.2, which guards only the state *scheduled*). A
resize takes a fraction of a second, so these triggers would be the ones to meet it.
"""

from __future__ import annotations

import asyncio

from elastic_training.airflow.sdk import conf

MARGIN = 5.0
"""Seconds for the scheduler to hear of it, after the process has ended."""


class Settling:
    """Made when a trigger begins, which is after its task was deferred; in its event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        linger = conf.getfloat("workers", "min_heartbeat_interval", fallback=5.0)
        self._until = self._loop.time() + linger + MARGIN

    async def over(self) -> None:
        """Returns when an event does no harm."""
        await asyncio.sleep(max(0.0, self._until - self._loop.time()))
