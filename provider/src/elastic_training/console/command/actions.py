"""One function a command; what is slow runs in the one event loop of the process, where clients are kept."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from elastic_training.concurrency.bridge import close, run
from elastic_training.console.command import changing, pruning
from elastic_training.console.command.entering import enter
from elastic_training.console.command.exit_status import DONE, REFUSED, USAGE
from elastic_training.console.command.finding import Chosen, choose, listing
from elastic_training.console.command.log import print_log
from elastic_training.console.command.output import complain, say
from elastic_training.console.command.showing import tell_run, tell_runs
from elastic_training.console.places import known_places
from elastic_training.lifecycle.retention import configured


def carry_out(arguments: Namespace) -> int:
    """The exit status. Raises what the errors of a place are, and KeyboardInterrupt."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # Whatever a run calls itself, a terminal of any locale can be told of it.
            stream.reconfigure(errors="backslashreplace", line_buffering=True)
    places = list(dict.fromkeys(arguments.place or known_places()))
    try:
        match arguments.command:
            case "runs":
                status = _runs(places, arguments)
            case "prune":
                status = _prune(places, arguments)
            case _:
                status = _of_a_run(places, arguments)
        sys.stdout.flush()
    finally:
        close()
    return status


def _runs(places: list[str], arguments: Namespace) -> int:
    seen = run(listing(places))
    wanted = tuple(each for each in seen.runs if arguments.phase in (None, each.headline.phase.value))
    tell_runs(type(seen)(wanted, seen.unreachable), as_json=arguments.json)
    return REFUSED if seen.unreachable else DONE


def _prune(places: list[str], arguments: Namespace) -> int:
    found = run(pruning.outdated_in(places, configured(arguments.days, arguments.runs), arguments.all_deployments))
    pruning.tell(found)
    if not found.runs or arguments.dry_run:
        return REFUSED if found.unreachable else DONE
    if not arguments.yes and not sys.stdin.isatty():
        complain("prune asks at a terminal whether you mean it; elsewhere, write --yes")
        return USAGE
    if not arguments.yes and not pruning.confirmed(len(found.runs)):
        complain("nothing was done")
        return REFUSED
    removed = run(pruning.remove_all(found.runs))
    return DONE if removed and not found.unreachable else REFUSED


def _of_a_run(places: list[str], arguments: Namespace) -> int:
    chosen = run(choose(places, arguments.run))
    match arguments.command:
        case "show":
            tell_run(chosen.found, run(chosen.cluster.status(chosen.ref)), as_json=arguments.json)
        case "scale":
            run(changing.scale(chosen, arguments.workers))
        case "notice":
            run(changing.notice(chosen, arguments.worker, arguments.seconds))
        case "stacks":
            run(changing.stacks(chosen))
        case "logs":
            run(print_log(chosen, follow=arguments.follow, last=arguments.lines))
        case "exec":
            return enter(chosen.cluster, run(chosen.cluster.status(chosen.ref)), arguments.worker, arguments.enter)
        case "report":
            from elastic_training.report import render_report

            _write(render_report(run(chosen.cluster.status(chosen.ref))), arguments.output)
        case "end":
            return _end(chosen, arguments.yes)
    return DONE


def _end(chosen: Chosen, sure: bool) -> int:
    if not sure and not sys.stdin.isatty():
        complain("end asks at a terminal whether you mean it; elsewhere, write --yes")
        return USAGE
    if not sure and not changing.confirmed(chosen):
        complain("nothing was done")
        return REFUSED
    run(changing.end(chosen))
    return DONE


def _write(page: str, path: str | None) -> None:
    if path is None:
        sys.stdout.write(page)
        return
    Path(path).write_text(page, encoding="utf-8", errors="replace")
    say(f"written to {path}")
