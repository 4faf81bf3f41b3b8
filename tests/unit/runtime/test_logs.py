"""What our modules log in a script that configures its own logging."""

from __future__ import annotations

import configparser
import logging
import logging.config
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import elastic_runtime
from elastic_runtime.logs import script_logger
from elastic_runtime.script.function import _report_result

OURS = "elastic_runtime.script.function"
Loggers = dict[str, dict[str, Any]]


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """As logging was before: a test's configuration is of the whole process."""
    root, ours = logging.getLogger(), logging.getLogger("elastic_runtime")
    before = root.handlers[:], root.level, ours.level, ours.propagate
    loggers = [each for each in logging.Logger.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    disabled = [each.disabled for each in loggers]
    yield
    logging.disable(logging.NOTSET)
    for logger, was in zip(loggers, disabled, strict=True):
        logger.disabled = was
    for handler in set(root.handlers) - set(before[0]):
        handler.close()
    root.handlers[:], root.level, ours.level, ours.propagate = before
    ours.handlers.clear()
    logging.Logger.manager._clear_cache()  # type: ignore[attr-defined]  # levels were set without the function for it


def by_dict(file: Path, loggers: Loggers) -> None:
    handlers = {"file": {"class": "logging.FileHandler", "filename": str(file)}}
    root = {"level": "INFO", "handlers": ["file"]}
    logging.config.dictConfig({"version": 1, "handlers": handlers, "root": root, "loggers": loggers})


def by_file(file: Path, loggers: Loggers) -> None:
    sections = {
        "loggers": {"keys": ",".join(["root", *(name.replace(".", "_") for name in loggers)])},
        "handlers": {"keys": "file"},
        "formatters": {"keys": ""},
        "logger_root": {"level": "INFO", "handlers": "file"},
        "handler_file": {"class": "FileHandler", "args": f"({str(file)!r},)"},
    }
    for name, settings in loggers.items():
        sections[f"logger_{name.replace('.', '_')}"] = {"qualname": name, "handlers": "", **settings}
    parser = configparser.RawConfigParser()
    parser.read_dict(sections)
    logging.config.fileConfig(parser)


both = pytest.mark.parametrize("configure", [by_dict, by_file])


def logged(file: Path) -> str:
    for handler in logging.getLogger().handlers:
        handler.flush()
    return file.read_text()


@both
def test_a_configuration_silences_none_of_our_warnings(
    configure: Callable[[Path, Loggers], None], tmp_path: Path
) -> None:
    other = logging.getLogger("of.another.library")
    configure(tmp_path / "log", {})
    _report_result(object())
    other.warning("which the configuration has disabled")
    text = logged(tmp_path / "log")
    assert "left out of the result" in text
    assert other.disabled
    assert "which the configuration" not in text


@both
def test_an_explicit_level_is_obeyed(configure: Callable[[Path, Loggers], None], tmp_path: Path) -> None:
    configure(tmp_path / "log", {"elastic_runtime": {"level": "ERROR"}})
    _report_result(object())
    logging.getLogger(OURS).error("an error")
    assert logged(tmp_path / "log") == "an error\n"


def test_what_a_script_disables_itself_is(tmp_path: Path) -> None:
    by_dict(tmp_path / "log", {})
    logger = logging.getLogger(OURS)
    logger.disabled = True
    _report_result(object())
    logger.disabled = False
    logging.disable(logging.WARNING)
    _report_result(object())
    logging.disable(logging.NOTSET)
    assert logged(tmp_path / "log") == ""
    _report_result(object())
    assert "left out of the result" in logged(tmp_path / "log")


def test_a_class_of_the_script_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    class Theirs(logging.Logger):
        """That of all loggers."""

    monkeypatch.setattr(logging.Logger.manager, "loggerClass", Theirs)
    logger = script_logger("elastic_runtime.of_a_test")
    assert isinstance(logger, Theirs)
    assert script_logger("elastic_runtime.of_a_test") is logger


def test_all_modules_that_run_in_scripts_have_such_loggers() -> None:
    """The others of an engine are its session, in the launcher."""
    package = Path(elastic_runtime.__file__).parent
    folders = ("checkpoint", "engines", "script", "tensorflow", "torch", "training")
    usual = {
        str(file.relative_to(package))
        for folder in folders
        for file in (package / folder).rglob("*.py")
        if re.search(r"\blogging\.getLogger\(", file.read_text(encoding="utf-8"))
    }
    assert usual == {"engines/torch/session.py"}
