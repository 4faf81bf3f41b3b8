"""Files of the DAG's folder that are shipped: which are meant, and when what is wrong is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowFailException, task

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.shipment import MAX_UNPACKED, unpack
from elastic_runtime.run.spec import MAX_PACKED
from elastic_training.clusters.fake import FakeCluster
from elastic_training.settings.scripts import check_scripts, read_scripts
from tests.unit.provider.operator_bench import operator, run_in, trying


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a DAG file."""
    for name in ("train.py", "lib/help.py", "lib/deep/more.py", "lib/__pycache__/help.cpython-311.pyc", "lib/.env"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


@pytest.mark.parametrize(
    ("scripts", "names"),
    [
        (["train.py"], {"train.py"}),
        (["./train.py", Path("lib/help.py")], {"train.py", "lib/help.py"}),
        (["lib/"], {"lib/help.py", "lib/deep/more.py"}),
        (["lib", "lib/help.py"], {"lib/help.py", "lib/deep/more.py"}),
        (["."], {"train.py", "lib/help.py", "lib/deep/more.py"}),
    ],
)
def test_files_and_folders_are_found_and_caches_and_hidden_files_left(
    folder: Path, scripts: list[Any], names: set[str]
) -> None:
    assert read_scripts(scripts, [folder]) == {name: name.encode() for name in names}


def test_the_first_folder_that_has_it_counts_as_with_templates(folder: Path, tmp_path: Path) -> None:
    (folder / "other").mkdir()
    for name in ("train.py", "more.py"):
        (folder / "other" / name).write_text("other")
    found = read_scripts(["train.py", "more.py"], [folder, folder / "other"])
    assert found == {"train.py": b"train.py", "more.py": b"other"}


@pytest.mark.parametrize(
    ("scripts", "problem"),
    [
        ("train.py", "a str is not a list"),
        (3, "a int is not a list"),
        ([3], "a int is not a path"),
        ([""], "not below"),
        (["/etc/passwd"], "not below"),
        (["lib/../../train.py"], "not below"),
        (["no.py"], "no.py is not in"),
        (["lib/__pycache__"], "has no files to ship"),
        (["lib/.env"], "not a name that can be shipped"),
    ],
)
def test_what_cannot_be_shipped_is_refused_at_parse(folder: Path, scripts: Any, problem: str) -> None:
    with pytest.raises(InvalidSettings, match=problem) as caught:
        check_scripts(scripts, [folder])
    assert caught.value.field == "scripts"


def test_what_is_too_large_is_refused_at_parse_with_the_remedy(folder: Path) -> None:
    (folder / "data.bin").write_bytes(b"\0" * (MAX_UNPACKED + 1))
    with pytest.raises(InvalidSettings, match="image"):
        check_scripts(["data.bin"], [folder])


def test_a_template_waits(folder: Path) -> None:
    check_scripts(["{{ params.model }}/train.py", "train.py"], [folder])
    with pytest.raises(InvalidSettings, match=r"no\.py"):
        check_scripts(["{{ params.model }}/train.py", "no.py"], [folder])


class TestTheOperator:
    """With this file as the DAG's."""

    def test_ships_what_is_beside_the_dag_file_and_reads_it_at_execute(self, fake: FakeCluster) -> None:
        with DAG("nightly", schedule=None):
            train = operator(command=["python", "fakes.py"], scripts=["fakes.py"], wait_for_completion=False)
        train.execute({"ti": trying()})
        spec = run_in(fake).document.spec
        assert spec.scripts is not None
        assert unpack(spec.scripts) == {"fakes.py": Path(__file__).with_name("fakes.py").read_bytes()}

    def test_without_scripts_nothing_is_shipped(self, fake: FakeCluster) -> None:
        operator(wait_for_completion=False).execute({"ti": trying()})
        assert run_in(fake).document.spec.scripts is None

    def test_looks_in_the_search_path_of_templates(self, fake: FakeCluster, folder: Path) -> None:
        with DAG("nightly", schedule=None, template_searchpath=[str(folder)]):
            train = operator(scripts=["train.py"], wait_for_completion=False)
        train.execute({"ti": trying()})
        assert run_in(fake).document.spec.scripts is not None

    def test_says_at_parse_what_is_not_there(self) -> None:
        with DAG("nightly", schedule=None), pytest.raises(InvalidSettings, match=r"no\.py is not in"):
            operator(scripts=["no.py"])

    def test_takes_templates_and_outputs(self, fake: FakeCluster) -> None:
        @task
        def chosen() -> list[str]:
            return ["fakes.py"]

        with DAG("nightly", schedule=None):
            train = operator(scripts=chosen(), wait_for_completion=False)
        assert train.upstream_task_ids == {"chosen"}
        train.scripts = ["{{ 'no' }}.py"]
        train.render_template_fields({}, train.dag.get_template_env())
        with pytest.raises(AirflowFailException, match=r"no\.py is not in"):
            train.execute({"ti": trying()})

    def test_a_shipment_that_is_too_large_fails_without_another_try(self, fake: FakeCluster, folder: Path) -> None:
        import random

        (folder / "noise").write_bytes(random.Random(1).randbytes(MAX_PACKED + 1000))
        with DAG("nightly", schedule=None, template_searchpath=[str(folder)]):
            train = operator(scripts=["noise"])
        with pytest.raises(AirflowFailException, match=r"256 KiB.*image"):
            train.execute({"ti": trying()})
        assert fake.runs == {}

    def test_an_adopted_run_with_other_scripts_is_told_of(
        self, fake: FakeCluster, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with DAG("nightly", schedule=None, template_searchpath=[str(folder)]):
            train = operator(scripts=["train.py"], wait_for_completion=False)
        train.execute({"ti": trying()})
        (folder / "train.py").write_text("changed")
        train.execute({"ti": trying(2)})
        assert "these have changed since: scripts" in capsys.readouterr().out
