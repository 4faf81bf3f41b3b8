"""A launcher's life in its pod, but for the training: how it comes into leadership, and with which status it ends."""

from __future__ import annotations

import asyncio
import io
import logging
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from elastic_runtime.documents import from_json, to_json
from elastic_runtime.errors import (
    ClusterUnavailable,
    ElasticError,
    FailureKind,
    InvalidDocument,
    InvalidSettings,
    MissingRight,
    OwnershipLost,
    RunNotFound,
)
from elastic_runtime.kubernetes.resources import CONFIG_MAPS
from elastic_runtime.launcher.kubernetes import __main__ as program
from elastic_runtime.launcher.kubernetes import service
from elastic_runtime.launcher.kubernetes.leadership import fenced, next_term
from elastic_runtime.launcher.kubernetes.settings import LauncherSettings, read_settings
from elastic_runtime.net import certificates
from elastic_runtime.run import runobjects
from elastic_runtime.run.headline import Headline, headline
from elastic_runtime.run.join import pin_of
from elastic_runtime.run.runobjects import COMPLETE, HEADLINE, SCRIPTS_KEY, SPEC_KEY, ObjectNames, Term
from elastic_runtime.run.shipment import content, pack
from elastic_runtime.run.status import Phase, Status
from tests.unit.provider.virtual_time import run_virtually
from tests.unit.runtime.fake_kubernetes import FakePlace
from tests.unit.runtime.kubernetes_bench import NOON, enter, lay_down, published, spec, status

RUN = spec()
NAMES = ObjectNames(RUN.name)
SETTINGS = LauncherSettings(RUN.name, RUN.uid, "ns", "pod", "pod-9", "127.0.0.1", Path("/nowhere"))


def within(test: Callable[[FakePlace], Awaitable[None]], *, complete: bool = True) -> None:
    async def main() -> None:
        place = FakePlace()
        await lay_down(place, RUN, complete=complete)
        await test(place)

    run_virtually(main())


class TestTerms:
    @pytest.mark.parametrize(
        ("previous", "spec_fence", "fence"),
        [(None, 7, int(NOON.timestamp())), (None, 2**40, 2**40), (Term(3, "x", 2**40, NOON), 7, 2**40 + 1)],
    )
    def test_have_fences_above_all_before(self, previous: Term | None, spec_fence: int, fence: int) -> None:
        term = next_term(previous, "pod-9", spec(fence=spec_fence), NOON)
        assert term == Term(previous.number + 1 if previous else 1, "pod-9", fence, NOON)

    def test_reach_the_ranks(self) -> None:
        told = fenced(RUN, Term(3, "x", 99, NOON))
        assert told.checkpoint is not None
        assert (told.checkpoint.fence, told.checkpoint.uri) == (99, "s3://b/r")
        without = replace(RUN, checkpoint=None)
        assert fenced(without, Term(3, "x", 99, NOON)) == without
        assert next_term(None, "x", without, NOON).fence == int(NOON.timestamp())


class TestJoining:
    def test_a_launcher_that_machines_join_tells_where_and_how_it_is_recognized(self, tmp_path: Path) -> None:
        certificates.create(tmp_path / "tls")
        settings = replace(SETTINGS, tls=tmp_path / "tls")
        door = service.door_of(settings)
        assert door.address == "127.0.0.1"
        certificate = ssl.PEM_cert_to_DER_cert((tmp_path / "tls" / "launcher.crt").read_text())
        assert door.pin == pin_of(certificate).hex()
        term = next_term(None, "x", RUN, NOON, door)
        assert from_json(Term, to_json(term)) == term
        assert '"pin"' not in to_json(next_term(None, "x", RUN, NOON))

    def test_one_without_its_certificate_cannot_run(self) -> None:
        with pytest.raises(InvalidDocument, match="the launcher's certificate cannot be read"):
            service.door_of(SETTINGS)


class TestBegin:
    def test_reads_the_run_and_continues_the_status(self) -> None:
        async def test(place: FakePlace) -> None:
            await (await enter(place, RUN)).write(status(RUN, reason="so far"))
            begun = await service.begin(place.api, SETTINGS)
            assert (begun.spec, begun.previous) == (RUN, status(RUN, reason="so far"))
            assert (begun.leadership.term.number, begun.leadership.term.holder) == (2, "pod-9")

        within(test)

    def test_begins_anew_after_a_status_that_nobody_can_read(self, caplog: pytest.LogCaptureFixture) -> None:
        async def test(place: FakePlace) -> None:
            await place.change(CONFIG_MAPS, NAMES.status, {"data": {"status.json": "{}"}})
            assert (await service.begin(place.api, SETTINGS)).previous is None

        within(test)
        assert "cannot be read, and is begun anew" in caplog.text

    @pytest.mark.parametrize(
        ("changes", "error", "words"),
        [
            ({"data": {SPEC_KEY: None}}, InvalidDocument, "ConfigMap digits has no spec.json"),
            ({"data": {SPEC_KEY: "nonsense"}}, InvalidDocument, "is not a JSON object"),
            ({"data": {SPEC_KEY: '{"uid":"first"}'}}, InvalidDocument, "not a RunSpec"),
            (
                {"data": {SPEC_KEY: to_json(RUN).replace('"version":1', '"version":99')}},
                InvalidDocument,
                "its version is 99, and version 1 is read here: have one release of elastic-runtime",
            ),
            ({"data": {SPEC_KEY: to_json(spec(uid="second"))}}, OwnershipLost, "another incarnation"),
        ],
    )
    def test_refuses(self, changes: dict[str, object], error: type[ElasticError], words: str) -> None:
        async def test(place: FakePlace) -> None:
            await place.change(CONFIG_MAPS, RUN.name, changes)
            with pytest.raises(error, match=words):
                await service.begin(place.api, SETTINGS)

        within(test)

    def test_finds_the_files_that_came_with_the_run_beside_its_certificates(self, tmp_path: Path) -> None:
        shipment = pack({"train.py": b"pass"})
        slip, settings = spec(scripts=shipment.slip()), replace(SETTINGS, tls=tmp_path)

        async def test(place: FakePlace) -> None:
            await place.change(CONFIG_MAPS, RUN.name, {"data": {SPEC_KEY: to_json(slip)}})
            with pytest.raises(InvalidDocument, match="cannot be read"):
                await service.begin(place.api, settings)
            (tmp_path / SCRIPTS_KEY).write_bytes(content(shipment))
            assert (await service.begin(place.api, settings)).spec.scripts == shipment
            (tmp_path / SCRIPTS_KEY).write_bytes(b"x" * 2**20)
            with pytest.raises(InvalidSettings, match="more than 256 KiB"):
                await service.begin(place.api, settings)

        within(test)

    def test_waits_for_its_creator(self) -> None:
        async def test(place: FakePlace) -> None:
            beginning = asyncio.create_task(service.begin(place.api, SETTINGS))
            await asyncio.sleep(service.CREATION_TIMEOUT - 5)
            assert not beginning.done()
            await place.change(CONFIG_MAPS, RUN.name, {"metadata": {"annotations": {COMPLETE: "yes"}}})
            assert (await beginning).leadership.term.number == 1

        within(test, complete=False)

    def test_clears_up_after_a_creator_that_has_died(self) -> None:
        async def test(place: FakePlace) -> None:
            with pytest.raises(OwnershipLost, match="has died half way"):
                await service.begin(place.api, SETTINGS)
            assert asyncio.get_running_loop().time() >= service.CREATION_TIMEOUT
            assert await place.api.find(CONFIG_MAPS, RUN.name) is None

        within(test, complete=False)

    def test_is_patient_with_an_api_server_that_is_away(self) -> None:
        async def test(place: FakePlace) -> None:
            place.away = True
            asyncio.get_running_loop().call_later(service.OUTAGE_TIMEOUT - 5, setattr, place, "away", False)
            assert (await service.begin(place.api, SETTINGS)).spec == RUN
            place.away = True
            with pytest.raises(ClusterUnavailable):
                await service.begin(place.api, SETTINGS)

        within(test)

    def test_is_not_patient_without_rights_for_long(self) -> None:
        async def test(place: FakePlace) -> None:
            place.forbidden = {("patch", CONFIG_MAPS)}
            with pytest.raises(MissingRight, match="cannot patch"):
                await service.begin(place.api, SETTINGS)
            assert asyncio.get_running_loop().time() <= service.RIGHTS_TIMEOUT + 2

        within(test)

    def test_of_a_run_that_is_gone_ends_at_once(self) -> None:
        async def test(place: FakePlace) -> None:
            await place.remove(CONFIG_MAPS, RUN.name)
            with pytest.raises(RunNotFound):
                await service.begin(place.api, SETTINGS)
            assert asyncio.get_running_loop().time() == 0

        within(test)


class TestServe:
    def test_a_run_that_is_over_stays_so(self) -> None:
        over = status(RUN, Phase.FAILED, "enough", failure=FailureKind.CANCELLED)

        async def test(place: FakePlace) -> None:
            await (await enter(place, RUN)).write(over)
            assert await service.serve(place.api, SETTINGS, asyncio.Event(), io.StringIO()) == over
            assert await published(place, RUN) == over
            marks = (await place.api.get(CONFIG_MAPS, NAMES.status)).annotations
            assert from_json(Headline, marks[HEADLINE]) == headline(over)

        within(test)

    def test_an_abandoned_run_is_deleted_by_whoever_comes(self) -> None:
        over = status(RUN, Phase.FAILED, "nobody", failure=FailureKind.ABANDONED)

        async def test(place: FakePlace) -> None:
            await (await enter(place, RUN)).write(over)
            assert await service.serve(place.api, SETTINGS, asyncio.Event(), io.StringIO()) == over
            assert await place.api.find(CONFIG_MAPS, RUN.name) is None

        within(test)

    def test_a_pod_that_is_taken_before_it_has_begun_leaves_the_run_alone(self) -> None:
        async def test(place: FakePlace) -> None:
            taken = asyncio.Event()
            serving = asyncio.create_task(service.serve(place.api, SETTINGS, taken, io.StringIO()))
            await asyncio.sleep(3)
            taken.set()
            with pytest.raises(OwnershipLost, match="is being taken"):
                await serving
            assert await published(place, RUN) is None

        within(test, complete=False)


VARIABLES = {
    runobjects.RUN_VARIABLE: "digits",
    runobjects.RUN_UID_VARIABLE: "first",
    runobjects.NAMESPACE_VARIABLE: "ns",
    runobjects.POD_NAME_VARIABLE: "pod",
    runobjects.POD_UID_VARIABLE: "pod-9",
    runobjects.POD_ADDRESS_VARIABLE: "10.0.0.7",
}


class TestSettings:
    def test_come_from_the_pods_environment(self) -> None:
        assert read_settings([], VARIABLES) == LauncherSettings(
            "digits", "first", "ns", "pod", "pod-9", "10.0.0.7", Path(runobjects.TLS_FOLDER)
        )

    @pytest.mark.parametrize("missing", VARIABLES)
    def test_are_all_needed(self, missing: str) -> None:
        with pytest.raises(InvalidSettings, match=f"{missing}: this environment variable is not set"):
            read_settings([], {**VARIABLES, missing: ""})


class TestExitStatus:
    """Which Kubernetes, and so the operator, goes by."""

    def outcome(self, monkeypatch: pytest.MonkeyPatch, folder: Path, how: Status | Exception) -> tuple[int, str]:
        async def run(_: LauncherSettings) -> Status:
            if isinstance(how, Exception):
                raise how
            return how

        monkeypatch.setattr(program, "run", run)
        words = folder / "last-words"
        code = program.outcome_of(replace(SETTINGS, termination_log=words))
        return code, words.read_text() if words.exists() else ""

    @pytest.mark.parametrize(
        ("how", "code", "words"),
        [
            (status(RUN, Phase.SUCCEEDED), 0, ""),
            (status(RUN, Phase.FAILED), 0, ""),
            (status(RUN, Phase.SUSPENDED), runobjects.REPLACED, ""),
            (OwnershipLost("another"), runobjects.REPLACED, ""),
            (MissingRight("may not"), runobjects.COULD_NOT_RUN, "may not"),
            (InvalidSettings("engine", "is x", "Write y"), runobjects.COULD_NOT_RUN, "engine: is x. Write y"),
            (InvalidDocument("no spec"), runobjects.COULD_NOT_RUN, "no spec"),
            (RunNotFound("gone"), runobjects.COULD_NOT_RUN, "gone"),
            (
                ImportError("No module named 'cryptography'"),
                runobjects.COULD_NOT_RUN,
                "No module named 'cryptography'. Use an image with elastic-runtime[kubernetes] and what the run's "
                "engine needs",
            ),
            (ClusterUnavailable("away"), 1, "away"),
            (ZeroDivisionError("a bug"), 1, "the launcher has failed: ZeroDivisionError('a bug')"),
            (InvalidDocument("ü" * 5000), runobjects.COULD_NOT_RUN, "ü" * (program.MAX_TERMINATION_MESSAGE // 2)),
        ],
    )
    def test_says_whether_another_launcher_is_of_use(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: Status | Exception, code: int, words: str
    ) -> None:
        assert self.outcome(monkeypatch, tmp_path, how) == (code, words)

    def test_does_not_depend_on_the_last_words(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        assert self.outcome(monkeypatch, tmp_path / "nowhere", ClusterUnavailable("away")) == (1, "")

    def test_a_bug_is_in_the_log(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.ERROR):
            self.outcome(monkeypatch, tmp_path, ZeroDivisionError("a bug"))
        assert "ZeroDivisionError: a bug" in caplog.text
