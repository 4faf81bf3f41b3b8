"""Jinja in settings: Airflow renders by assigning to attributes, which frozen dataclasses refuse."""

from __future__ import annotations

from typing import Any

from elastic_training.settings import Settings


class RendersSettings:
    """Mix-in for operators, before their Airflow base: fields that are :class:`Settings` are replaced, not changed.

    Works on Airflow 2 and 3, in mapped operators too: all of them render through ``render_template``.
    """

    def render_template(
        self, content: Any, context: Any, jinja_env: Any = None, seen_oids: set[int] | None = None
    ) -> Any:
        """As Airflow's, and for settings their rendered copy."""
        render = super().render_template  # type: ignore[misc]  # the Airflow base that this is mixed into has it
        if isinstance(content, Settings):
            return content.rendered(lambda value: render(value, context, jinja_env, seen_oids))
        return render(content, context, jinja_env, seen_oids)
