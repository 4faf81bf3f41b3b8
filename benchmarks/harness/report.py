"""The launcher's section of the results: figures for programs, Markdown for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.harness.measures import MEANINGS, Measure
from benchmarks.harness.rounds import OURS, PEER, Collected
from benchmarks.harness.statistics import Ratio, Summary, compare, summarise


@dataclass(frozen=True, slots=True)
class Result:
    """One measure, both sides."""

    measure: Measure
    ours: Summary
    peer: Summary
    ratio: Ratio | None
    """Ours by the peer's; None when the peer's is 0."""

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None without one."""
        target = MEANINGS[self.measure].target
        return target.met(self.ours.centre, self.ratio.value if self.ratio else None) if target else None


def results_of(collected: Collected, only: Sequence[Measure] = ()) -> list[Result]:
    """Every measure (of ``only``, if not empty) for which both sides have figures, in the order of the enum."""
    results = []
    for measure in Measure:
        ours, peer = (collected.figures[measure][side] for side in (OURS, PEER))
        if ours and peer and (not only or measure in only):
            results.append(_result(measure, ours, peer))
    return results


def _result(measure: Measure, ours: Sequence[float], peer: Sequence[float]) -> Result:
    centre = MEANINGS[measure].centre
    return Result(measure, summarise(ours, centre), summarise(peer, centre), compare(ours, peer, centre))


def as_measures(results: Iterable[Result]) -> dict[str, dict[str, object]]:
    """``{measure: {title, ours, peer, ratio, rounds, …}}``; ours and peer as ``centre`` says."""
    return {result.measure: _plain(result) for result in results}


def _plain(result: Result) -> dict[str, object]:
    meaning, ratio = MEANINGS[result.measure], result.ratio
    return {
        "title": meaning.title,
        "ours": _round(result.ours.centre),
        "peer": _round(result.peer.centre),
        "ratio": ratio and _round(ratio.value),
        "rounds": min(result.ours.count, result.peer.count),
        "unit": meaning.unit,
        "centre": meaning.centre,
        "ours_quartiles": [_round(result.ours.low), _round(result.ours.high)],
        "peer_quartiles": [_round(result.peer.low), _round(result.peer.high)],
        "ratio_interval": ratio and [_round(ratio.low), _round(ratio.high)],
        "target": str(meaning.target) if meaning.target else None,
        "met": result.met,
    }


def table(results: Iterable[Result]) -> list[str]:
    """A Markdown table, one line each."""
    lines = [
        "| measure | ours | peer | ratio (95 %) | rounds | target | met |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for result in results:
        meaning = MEANINGS[result.measure]
        ratio = result.ratio
        cells = (
            f"{meaning.title} ({meaning.unit})",
            _spread(result.ours),
            _spread(result.peer),
            f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]" if ratio else "—",
            str(min(result.ours.count, result.peer.count)),
            str(meaning.target or "—"),
            {True: "yes", False: "**no**", None: "—"}[result.met],
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


LAUNCHER_HEAD = (
    "## Launcher against `horovodrun`",
    "",
    "Written by `make bench-launcher`. Ours is `python -m elastic_runtime.launcher` with its defaults; the",
    "peer is plain `horovodrun` with a host-discovery script and its defaults, or what a line says. How each",
    "figure is taken: [README.md](README.md). Medians, quartiles in brackets; the interval of a ratio is a",
    "bootstrap over the rounds.",
)
TORCH_HEAD = (
    "## Engine `torch` against `torchrun` and TorchFT",
    "",
    "Written by `make bench-torch`. Ours is the launcher with the engine `torch`, in place; the peer is",
    "`torchrun --nnodes 1:4`, one for each worker, all else but one setting as by default, or TorchFT, a",
    "replica group of one rank for each worker. How each figure is taken: [README.md](README.md).",
)
SHARDED_HEAD = (
    "## Sharded models: `ShardedState` against `torchrun`",
    "",
    "Written by `make bench-sharded`: 30 M parameters under `fully_shard`, AdamW, Gloo. The peer restarts from",
    "snapshots of `torch.distributed.checkpoint`. How each figure is taken: [README.md](README.md).",
)


def as_lines(
    head: Sequence[str], results: Sequence[Result], machine: Mapping[str, str], troubles: Sequence[str]
) -> list[str]:
    """A section, whole, in Markdown."""
    return [
        *head,
        "",
        *table(results),
        "",
        *(f"* {name}: {value}" for name, value in machine.items()),
        "",
        "Rounds that failed, and ends that were not clean:",
        "",
        *([f"* {trouble}" for trouble in troubles] or ["* none"]),
    ]


def _spread(summary: Summary) -> str:
    return f"{summary.centre:.3g} [{summary.low:.3g}, {summary.high:.3g}]"


def _round(value: float) -> float:
    return round(value, 4)
