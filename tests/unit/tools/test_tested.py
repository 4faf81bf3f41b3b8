"""The table of what is tested where, as the marks of tests say it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tested import FAULTS, TRAININGS, Mistake, main, page, shown, targets

HEAD = "import pytest\n"


def having(folder: Path, source: str, *, of: str) -> Path:
    (folder / "tests" / of).mkdir(parents=True)
    (folder / "tests" / of / "test_some.py").write_text(HEAD + source)
    return folder


def test_a_mark_fills_each_cell_that_it_names(tmp_path: Path) -> None:
    source = """
pytestmark = [pytest.mark.timeout(9), pytest.mark.shows(place="local")]

@pytest.mark.shows(engine=("horovod", "torch"), fault="rank")
@pytest.mark.shows(engine="torch-sharded", fault="rank", by="test-faults")
def test_one(start): ...

@pytest.mark.long
@pytest.mark.shows(engine="horovod", framework="tensorflow", fault="resize")
def test_two(): ...

def test_without(): ...
"""
    cells = shown(having(tmp_path, source, of="local"))
    assert [(each.engine, each.framework, each.fault, each.target) for each in cells] == [
        ("horovod", "tensorflow", "resize", "test-long"),
        ("horovod", "torch", "rank", "test-local"),
        ("torch", "torch", "rank", "test-local"),
        ("torch-sharded", "torch", "rank", "test-faults"),
    ]
    assert targets(cells) == ["test-local", "test-faults", "test-long"]
    assert {each.place for each in cells} == {"local"}


def test_each_mark_of_a_module_is_one_for_all_its_tests(tmp_path: Path) -> None:
    source = """
pytestmark = [
    pytest.mark.shows(engine=("torch", "horovod"), place="local"),
    pytest.mark.shows(engine="horovod", framework="tensorflow", place="ray", by="test-other"),
]

@pytest.mark.shows(fault="rank")
def test_one(): ...
"""
    cells = shown(having(tmp_path, source, of="local"))
    assert [(each.engine, each.framework, each.place, each.target) for each in cells] == [
        ("horovod", "tensorflow", "ray", "test-other"),
        ("horovod", "torch", "local", "test-local"),
        ("torch", "torch", "local", "test-local"),
    ]


def test_a_mark_that_says_all_by_itself_is_of_its_test_alone(tmp_path: Path) -> None:
    source = """
pytestmark = [
    pytest.mark.shows(engine="torch", place="local"),
    pytest.mark.shows(engine="horovod", framework="tensorflow", place="local", by="test-other"),
]

@pytest.mark.shows(fault="rank")
@pytest.mark.shows(engine="torch", place="slurm", fault="rank")
def test_one(): ...
"""
    cells = shown(having(tmp_path, source, of="local"))
    assert [(each.engine, each.framework, each.place) for each in cells] == [
        ("horovod", "tensorflow", "local"),
        ("torch", "torch", "local"),
        ("torch", "torch", "slurm"),
    ]


@pytest.mark.parametrize(
    ("mark", "words"),
    [
        ('engine="mpi", place="local", fault="rank"', r"test_one: shows\(engine=mpi\); known: horovod"),
        ('engine="torch", place="moon", fault="rank"', r"shows\(place=moon\)"),
        ('engine="torch", place="local"', r"shows\(fault=nothing\)"),
        ('engine="torch", framework="tensorflow", place="local", fault="rank"', "by torch with tensorflow"),
        ('engine="torch", where="local", fault="rank"', "takes no where"),
    ],
)
def test_a_mark_that_can_fill_no_cell_is_refused(tmp_path: Path, mark: str, words: str) -> None:
    with pytest.raises(Mistake, match=words):
        shown(having(tmp_path, f"@pytest.mark.shows({mark})\ndef test_one(): ...\n", of="local"))


def test_a_folder_that_no_target_is_named_for_is_refused(tmp_path: Path) -> None:
    source = '@pytest.mark.shows(engine="torch", place="local", fault="rank")\ndef test_one(): ...\n'
    with pytest.raises(Mistake, match="name the target that runs tests/elsewhere"):
        shown(having(tmp_path, source, of="elsewhere"))


def test_a_target_that_runs_one_place_is_named_with_it(tmp_path: Path) -> None:
    source = """
@pytest.mark.shows(engine="torch", place=("local", "slurm"), fault="rank")
def test_one(): ...
"""
    cells = shown(having(tmp_path, source, of="matrix"))
    assert targets(cells) == ["test-matrix", "test-matrix PLACE=slurm"]
    assert "* `make test-matrix PLACE=slurm`: 1 of the above\n" in page(cells)


def test_cells_without_a_test_are_listed(tmp_path: Path) -> None:
    source = """
@pytest.mark.shows(engine="torch", place=("local", "slurm"), fault="rank")
@pytest.mark.shows(engine="torch", place="local", fault="worker")
def test_one(): ...
"""
    text = page(shown(having(tmp_path, source, of="local")))
    none = "**none**"
    row = " | ".join(["| `torch`, `DurableState`", none, none, none, "1", "{}", none, none, none, f"{none} |"])
    assert [line for line in text.splitlines() if line.startswith("| `torch`, `D")] == [
        row.format(1),
        row.format("*elsewhere*"),
    ]
    assert "## In Kubernetes" not in text
    assert "3 have a test in their own place, and 1 in another place only" in text
    assert "* `torch`, `DurableState`: a rank stands still\n" in text
    assert "* `torch`, `DurableState`: a rank is killed\n" not in text


def test_a_page_without_gaps_names_none(tmp_path: Path) -> None:
    marks = "".join(
        f"@pytest.mark.shows(engine={engine!r}, framework={framework!r}, place='local', fault={tuple(FAULTS)})\n"
        for engine, framework in TRAININGS
    )
    text = page(shown(having(tmp_path, f"{marks}def test_one(): ...\n", of="local")))
    assert "in another place only.\n\n## Run them" in text
    assert "No test" not in text


def test_the_page_is_what_the_marks_say() -> None:
    assert main("--check") == 0
