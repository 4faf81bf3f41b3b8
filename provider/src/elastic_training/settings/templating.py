"""Settings whose fields may be templates, or outputs of other tasks; and how Airflow renders and shows them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import MISSING, Field, dataclass, fields
from enum import Enum
from typing import Any, ClassVar, TypeVar

from elastic_training.airflow.sdk import XComArg
from elastic_training.airflow.versions import ResolveMixin
from elastic_training.redaction.values import HIDDEN, redacted

S = TypeVar("S", bound="Settings")


_all_known: ContextVar[bool] = ContextVar("elastic_training_all_known", default=False)


@contextmanager
def all_known() -> Iterator[None]:
    """For what is checked after rendering: what looks like a template then is what a template has yielded."""
    token = _all_known.set(True)
    try:
        yield
    finally:
        _all_known.reset(token)


def is_template(value: object) -> bool:
    """Whether this value is not known yet: a Jinja template, or the output of another task."""
    if _all_known.get():
        return False
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    return isinstance(value, ResolveMixin) and not isinstance(value, Settings)


@dataclass(frozen=True)
class Settings(ResolveMixin):
    """Base of settings whose fields may be templates, or outputs of other tasks.

    Airflow asks a field for the tasks that it depends on (:meth:`iter_references`) and for what it shows
    (:meth:`serialize`), in the rendered fields and in the serialised DAG.
    """

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.__repr__ = Settings.__repr__  # type: ignore[method-assign]  # or the dataclass would write one, with secrets

    def rendered(self: S, render: Callable[[Any], Any]) -> S:
        """A copy with every template rendered, and every output of another task in its place.

        The copy is not checked: that is for ``execute``, where a bad value ends the task without another try, and not
        for the rendering, where it would look like a broken template.
        """
        copy = object.__new__(type(self))
        for field in fields(self):
            value = getattr(self, field.name)
            made = _rendered(value, render)
            if is_template(value) and isinstance(made, str) and _is_mapping_as_text(field, made):
                made = RenderedText()
            object.__setattr__(copy, field.name, made)
        return copy

    def known(self: S, **stand_ins: Any) -> S:
        """A copy to be checked at parse: what is not known yet is as these say, else as its default."""
        copy = object.__new__(type(self))
        for field in fields(self):
            value = getattr(self, field.name)
            if is_template(value):
                value = stand_ins.get(field.name, _default(field))
            object.__setattr__(copy, field.name, value)
        return copy

    def iter_references(self) -> Iterable[tuple[Any, str]]:
        """The outputs of other tasks in it, which makes those upstream of the task that has it."""
        for field in fields(self):
            yield from XComArg.iter_xcom_references(getattr(self, field.name))

    def resolve(self, context: Any, **_: Any) -> Any:
        """Render as :meth:`rendered`, for other packages' operators with settings in their fields."""
        return self.rendered(lambda value: context["task"].render_template(value, context))

    def serialize(self) -> Any:
        """Plain values for people: what differs from the defaults, without secrets."""
        # Each for itself: names of our own fields (service_account, secrets) are not a reason to hide them.
        return {name: redacted(value) for name, value in _given(self).items()}

    def __str__(self) -> str:
        """Return JSON, which Airflow 2 shows."""
        return json.dumps(self.serialize(), ensure_ascii=False)

    def __repr__(self) -> str:
        """Return the settings as they would be written, without secrets."""
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.serialize().items())})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Environment(Settings, Mapping[str, Any]):
    """Variables, as the operator keeps them: a mapping that is shown without secrets, also in the serialised DAG."""

    variables: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.variables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.variables)

    def __len__(self) -> int:
        return len(self.variables)

    def serialize(self) -> Any:
        """The variables, those that look secret as ``***``."""
        return redacted(plain(dict(self.variables)))


class RenderedText:
    """Stands for the text that a template has yielded where a mapping belongs, which execution refuses.

    The text may be a mapping with secrets, in which no name shows which values these are. So it is not kept.
    """

    def serialize(self) -> str:
        """As Airflow shows it."""
        return HIDDEN

    def __str__(self) -> str:
        return HIDDEN

    def __repr__(self) -> str:
        return HIDDEN


def as_environment(given: Any) -> Any:
    """Variables as an :class:`Environment`; all else as it is."""
    known = isinstance(given, Mapping) and not isinstance(given, Environment)
    return Environment(given) if known else given


def plain(value: Any) -> Any:
    """Lists, mappings, strings and numbers of whatever stands in settings, secrets included."""
    if isinstance(value, Settings) and not isinstance(value, Mapping):
        return _given(value)
    if hasattr(value, "to_dict") and hasattr(value, "openapi_types"):  # A model of the Kubernetes client.
        value = {key: each for key, each in value.to_dict().items() if each is not None}
    match value:
        case Enum():
            return value.value
        case None | bool() | int() | float():
            return value
        case Mapping():
            return {str(key): plain(each) for key, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
    return str(value)


def _given(settings: Settings) -> dict[str, Any]:
    """Return the fields that differ from their defaults, as plain values."""
    values = ((field, getattr(settings, field.name)) for field in fields(settings))
    return {field.name: plain(value) for field, value in values if value != _default(field)}


def _is_mapping_as_text(field: Field[Any], text: str) -> bool:
    """Whether a field is to be a mapping, and this is text; a field that may be a path as well decides by its begin."""
    kind = str(field.type)
    return "Mapping" in kind and (" str" not in kind or text.lstrip().startswith("{"))


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _rendered(value: object, render: Callable[[Any], Any]) -> Any:
    """Strings and outputs wherever they are: in settings within settings, in lists, as values of mappings."""
    match value:
        case Settings():
            return value.rendered(render)
        case str() | ResolveMixin():
            return render(value)
        case Mapping():
            return {key: _rendered(each, render) for key, each in value.items()}
        case list() | tuple():
            each_rendered = [_rendered(each, render) for each in value]
            return each_rendered if isinstance(value, list) else tuple(each_rendered)
    return value


class RendersSettings:
    """Mix-in for operators, before their Airflow base: fields that are :class:`Settings` are replaced, not changed.

    Airflow itself renders by assigning to attributes, which frozen dataclasses refuse. Works on Airflow 2 and 3, in
    mapped operators too: all of them render through ``render_template``.
    """

    mappings: ClassVar[Collection[str]] = ()
    """Fields that are mappings, and may have secrets in them."""
    template_fields: Sequence[str]

    def render_template(
        self, content: Any, context: Any, jinja_env: Any = None, seen_oids: set[int] | None = None
    ) -> Any:
        """Render as Airflow does, and return a rendered copy of settings."""
        render = super().render_template  # type: ignore[misc]  # the Airflow base that this is mixed into has it
        if isinstance(content, Settings):
            return content.rendered(lambda value: render(value, context, jinja_env, seen_oids))
        rendered = render(content, context, jinja_env, seen_oids)
        whole = [name for name in self.template_fields if getattr(self, name, None) is content]
        if not whole or not is_template(content):
            return rendered
        if isinstance(rendered, str):
            return RenderedText() if any(name in self.mappings for name in whole) else rendered
        return as_environment(rendered)
