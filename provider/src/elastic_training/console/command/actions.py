"""One function a command; what is slow runs in the one event loop of the process, where clients are kept."""

from __future__ import annotations

import getpass
import shlex
import shutil
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import Conflict, InvalidSettings
from elastic_runtime.run.join import is_joined
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Status, WorkerStatus
from elastic_runtime.run.status_failure import without_quotes
from elastic_training.clusters.cluster import Cluster
from elastic_training.concurrency.bridge import close, run
from elastic_training.console.command import auditing, costing, pruning
from elastic_training.console.command.exit_status import DONE, REFUSED, USAGE
from elastic_training.console.command.finding import Chosen, choose, hiding, listing
from elastic_training.console.command.log import print_log
from elastic_training.console.command.output import fit, print_error, print_line
from elastic_training.console.command.showing import print_run, print_runs
from elastic_training.console.places import known_places
from elastic_training.lifecycle.retention import configured
from elastic_training.redaction.free_text import without_secrets


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
            case "costs":
                status = costing.costs(places, arguments)
            case "verify":
                status = auditing.verify(arguments.run, lambda: _spec(run(choose(places, arguments.run))))
            case "replay":
                status = auditing.replay(_spec(run(choose(places, arguments.run))), arguments)
            case _:
                status = _of_a_run(places, arguments)
        sys.stdout.flush()
    finally:
        close()
    return status


def _runs(places: list[str], arguments: Namespace) -> int:
    seen = run(listing(places))
    wanted = tuple(each for each in seen.runs if arguments.phase in (None, each.headline.phase.value))
    print_runs(type(seen)(wanted, seen.unreachable), as_json=arguments.json)
    return REFUSED if seen.unreachable else DONE


def _prune(places: list[str], arguments: Namespace) -> int:
    found = run(pruning.outdated_in(places, configured(arguments.days, arguments.runs), arguments.all_deployments))
    pruning.print_outdated(found)
    if not found.runs or arguments.dry_run:
        return REFUSED if found.unreachable else DONE
    if not arguments.yes and not sys.stdin.isatty():
        print_error("prune asks at a terminal whether you mean it; elsewhere, write --yes")
        return USAGE
    if not arguments.yes and not pruning.confirmed(len(found.runs)):
        print_error("nothing was done")
        return REFUSED
    removed = run(pruning.remove_all(found.runs))
    return DONE if removed and not found.unreachable else REFUSED


def _spec(chosen: Chosen) -> RunSpec:
    return run(chosen.cluster.spec(chosen.ref))


def _of_a_run(places: list[str], arguments: Namespace) -> int:
    chosen = run(choose(places, arguments.run))
    match arguments.command:
        case "show":
            hide = run(hiding(chosen))
            head = replace(chosen.found.headline, reason=hide(chosen.found.headline.reason))
            status = without_secrets(run(chosen.cluster.status(chosen.ref)), hide)
            print_run(replace(chosen.found, headline=head), status, as_json=arguments.json)
        case "scale" | "pause":
            run(scale(chosen, arguments.workers))
        case "resume":
            run(resume(chosen, arguments.workers))
        case "notice" | "token" | "stacks":
            run(_of_its_workers(chosen, arguments))
        case "logs":
            run(print_log(chosen, run(hiding(chosen)), follow=arguments.follow, last=arguments.lines))
        case "exec":
            return enter(chosen.cluster, run(chosen.cluster.status(chosen.ref)), arguments.worker, arguments.enter)
        case "report":
            from elastic_training.report import render_report

            status = without_secrets(run(chosen.cluster.status(chosen.ref)), run(hiding(chosen)))
            _write(render_report(status), arguments.output)
        case "end":
            return _end(chosen, arguments.yes)
    return DONE


async def _of_its_workers(chosen: Chosen, arguments: Namespace) -> None:
    match arguments.command:
        case "notice":
            await notice(chosen, arguments.worker, arguments.seconds)
        case "token":
            await token(chosen, timedelta(minutes=arguments.minutes))
        case _:
            await stacks(chosen)


def _end(chosen: Chosen, sure: bool) -> int:
    if not sure and not sys.stdin.isatty():
        print_error("end asks at a terminal whether you mean it; elsewhere, write --yes")
        return USAGE
    if not sure and not confirmed(chosen):
        print_error("nothing was done")
        return REFUSED
    run(end(chosen))
    return DONE


def _write(page: str, path: str | None) -> None:
    if path is None:
        sys.stdout.write(page)
        return
    Path(path).write_text(page, encoding="utf-8", errors="replace")
    print_line(f"written to {path}")


# What a person asks of a run at a terminal, by the same ways as tasks do.


async def scale(chosen: Chosen, workers: str) -> None:
    """Ask for a number of workers; 0: for a pause.

    Raises:
        InvalidSettings: it is not a size, outside the run's bounds, or a pause of a run without a checkpoint store.
        Conflict: the run is over, or paused.
    """
    await _check_alive(chosen)
    asked = await chosen.cluster.ask(chosen.ref, workers, by=_person())
    what = "a pause" if asked.pause else f"{asked.workers} workers"
    print_line(f"run {chosen.ref.name}: {what} asked for")


async def resume(chosen: Chosen, workers: str | None) -> None:
    """Go on with a paused run.

    Raises:
        InvalidSettings: it is not a size, or outside the run's bounds.
        Conflict: the run is over, or not paused.
    """
    await _check_alive(chosen)
    asked = await chosen.cluster.resume(chosen.ref, workers, by=_person())
    print_line(f"run {chosen.ref.name}: resumed, {asked.workers} workers asked for")


async def notice(chosen: Chosen, worker: str, seconds: float) -> None:
    """Tell a worker that it will be taken.

    Raises:
        InvalidSettings: the run has no such worker.
        Conflict: the run is over.
    """
    await _check_alive(chosen)
    deadline = await chosen.cluster.reclaim(chosen.ref, worker, timedelta(seconds=seconds))
    print_line(f"run {chosen.ref.name}: sent {worker} a notice for {deadline:%H:%M:%S}Z")


async def token(chosen: Chosen, lifetime: timedelta) -> None:
    """Print the command by which a machine joins the run, to standard output alone: it holds a secret.

    Raises:
        InvalidSettings: machines may not join this run.
        Conflict: the run is over, or its launcher does not listen.
    """
    await _check_alive(chosen)
    print_line(await chosen.cluster.join_command(chosen.ref, lifetime))
    until = utc_now() + lifetime
    print_error(f"on one machine, until {until:%Y-%m-%d %H:%M:%S}Z; its elastic-runtime must be of the run's version")


async def stacks(chosen: Chosen) -> None:
    """Have each rank write into the run's log where it stands. Raises Conflict when the run is over."""
    await _check_alive(chosen)
    await chosen.cluster.dump_stacks(chosen.ref)
    print_line(f"run {chosen.ref.name}: its ranks write into its log where they stand, soon")


def confirmed(chosen: Chosen) -> bool:
    """Whether whoever sits at the terminal wants it ended; blocks."""
    head = chosen.found.headline
    step = "" if head.step is None else f", step {head.step}"
    sys.stderr.write(fit(f"End the run {chosen.ref.name} in {chosen.found.place} ({head.phase}{step})?") + " yes/no: ")
    sys.stderr.flush()
    return sys.stdin.readline(100).strip().lower() == "yes"


async def end(chosen: Chosen) -> None:
    """Ask the run to end."""
    if (status := await chosen.cluster.status(chosen.ref)).phase.final:
        print_line(f"run {chosen.ref.name} is over: {status.phase}")
        return
    await chosen.cluster.cancel(chosen.ref, f"{_person()} has ended it with elastic-training", None)
    print_line(f"run {chosen.ref.name} was asked to end")


async def _check_alive(chosen: Chosen) -> None:
    status = await chosen.cluster.status(chosen.ref)
    if status.phase.final:
        raise Conflict(f"the run {chosen.ref.name} is over: {status.phase} ({without_quotes(status.reason)})")


def _person() -> str:
    try:
        return fit(getpass.getuser(), 63)
    except (KeyError, OSError):  # In a container, perhaps, whose user has no name.
        return "somebody"


# A way into a worker, for a person who has the right to it: Kubernetes' own, with that person's own credentials.


def enter(cluster: Cluster, status: Status, name: str | None, run_it: bool) -> int:
    """Print the command that opens a shell in a worker, or run it.

    Args:
        cluster: of the run.
        status: its present one.
        name: of the worker; None: that of rank 0, or the first.
        run_it: whether to run it here, on this terminal.

    Returns:
        The exit status: of the command, if it was run.

    Raises:
        Conflict: no worker of the run is there.
        InvalidSettings: the run has no such worker, or there is nothing that could be run here.
    """
    worker = _worker(status, name)
    if is_joined(worker.name):
        problem = f"{worker.name} joined by hand, and runs on the machine {worker.node}"
        raise InvalidSettings("WORKER", problem, "Open a shell there as you usually do")
    words = cluster.shell_in(worker)
    if not words:
        pids = ", ".join(map(str, worker.pids)) or "not known"
        if run_it:
            problem = f"{worker.name} runs on this machine, as the processes {pids}"
            raise InvalidSettings("--run", problem, "Look at them with py-spy, gdb or strace; /proc/PID/cwd is where")
        print_line(f"{worker.name} runs on this machine; its agent and ranks are the processes {pids}")
        return 0
    if not run_it:
        print_line(shlex.join(words))
        return 0
    if shutil.which(words[0]) is None:
        raise InvalidSettings("--run", f"{words[0]} is not installed here", f"Run elsewhere: {shlex.join(words)}")
    return subprocess.run(words, check=False).returncode  # a list; names are checked by Kubernetes


def _worker(status: Status, name: str | None) -> WorkerStatus:
    present = [each for each in status.workers if not each.state.gone]
    if not present:
        raise Conflict(f"no worker of the run {status.run} is there: {status.phase} ({without_quotes(status.reason)})")
    if name is None:
        return next((each for each in present if 0 in each.ranks), present[0])
    if found := [each for each in present if each.name == name]:
        return found[0]
    names = ", ".join(each.name for each in present)
    raise InvalidSettings("WORKER", f"{name!r} is not there", f"Write one of {names}")
