"""What a run waits for, phase by phase, each with its limit, who is at fault, and what follows.

``docs/failures.md`` has this table in words, ``test_waits.py`` plays each row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from elastic_runtime.engines.base import SessionFact, SessionState, Stage
from elastic_runtime.errors import FailureKind
from elastic_runtime.launcher.decision.facts import (
    Action,
    CloseSession,
    CommitFact,
    DecisionSettings,
    Ending,
    EndStandstill,
    Facts,
    Finish,
    GiveUpWorker,
    ListRanks,
    OpenSession,
    PauseFact,
    RankStanding,
    ReformWorld,
    Refusal,
    RefusePause,
)
from elastic_runtime.run.waits import (
    ANSWER,
    AT_WORK,
    CONFIRMING_BEATS,
    ENDING,
    FIRST_COMMIT,
    LAST_WRITE,
    LEAST_STANDSTILL,
    LEAVE_MARGIN,
    LONGEST_BUSY,
    SILENT_BEATS,
)
from tests.unit.runtime.decide_bench import SETTLED, WAITING, A, B, C, facts, session, settings, worker

SETTINGS = settings(1, 3, 3, lease=6 * 3600.0)
RECOVERY, TIMING = SETTINGS.recovery, SETTINGS.timing
HELD = ("a", "b")


@dataclass(frozen=True)
class Wait:
    """A row. Facts are those at second 0, from which on nothing comes but time; and answers, where ranks are asked."""

    who: str
    """Where the run stands, in words of the document."""
    what: str
    """What is waited for."""
    limit: str
    fault: str
    """Who is at fault, as far as the rule says; else empty."""
    then: str
    given: Facts
    seconds: float
    follows: type[Action]
    names: str = ""
    """In the reason."""
    kind: FailureKind | None = None
    """Of an end."""
    before: Facts | None = None
    """The look before."""
    answers: tuple[RankStanding, ...] = ()
    """What is known of the ranks when they are asked."""
    settings: DecisionSettings = SETTINGS

    @property
    def line(self) -> str:
        """As in the document."""
        return f"| {self.who} | {self.what} | {self.limit} | {self.fault} | {self.then} |"


def forming(stage: Stage, *, world: int = 2, **more: object) -> Facts:
    """A world of a, b and c forms; a and b have the state."""
    known = SessionFact(SessionState.FORMING, ("a", "b", "c"), world=world, holders=HELD, stage=stage)
    return facts(3, A, B, C, session=replace(known, **more), trained=True)  # type: ignore[arg-type]  # each is right


def training(**more: object) -> Facts:
    """Three ranks train, which have committed at second 0."""
    known = facts(3, A, B, C, session=session(SETTLED, "a", "b", "c"), commits=CommitFact(0.0, 0.5), trained=True)
    return replace(known, **more)  # type: ignore[arg-type]  # each is right


def standing(rank: int, **what: object) -> RankStanding:
    name = "abc"[rank]
    usual = RankStanding(
        rank, name, name, f"slot-{name}", answered=True, collectives=4, waits=True, place="train.py:20"
    )
    return replace(usual, **what)  # type: ignore[arg-type]  # each is right


LOADS = (standing(0), standing(1, waits=False, place="data.py:7"), standing(2))
MUTE = (standing(0), RankStanding(1, "b", "b", "slot-b"), standing(2))
WORK = tuple(standing(rank, waits=False, place="evaluate.py:3") for rank in range(3))
STOPPED = (standing(0), RankStanding(1, "b", "b", "slot-b", stopped=True), standing(2))
FIRST = CommitFact(0.0, None, begun=False)
NONE = facts(3)
TRAIN = session(SETTLED, "a", "b", "c", holders=HELD)
COMMITS = training(commits=CommitFact(1e9, 0.5))
"""Again and again."""
DONE = replace(session(SessionState.FINISHING, "a", "b", "c"), done=True)
ONE_ENDED = Ending(((0, 9),), (1, 2))

WAITS = (
    Wait(
        *("starting", "workers, for the first world", "`start_timeout`", "", "fails: `start_timeout`"),
        *(NONE, RECOVERY.start_timeout, Finish),
        kind=FailureKind.START_TIMEOUT,
    ),
    Wait(
        *("starting", "workers that the cluster refuses for good", "60 s", "the reason of the refusal"),
        *("fails: `pod_refused`", replace(NONE, refusal=Refusal("no such image", hopeless=True)), 60.0, Finish),
        names="no such image",
        kind=FailureKind.POD_REFUSED,
    ),
    Wait(
        *("starting, suspended", "more workers, when `workers.min` are ready", "`timing.gather`", ""),
        *("begins with those that are ready", facts(3, A, B), TIMING.gather - 1, OpenSession),
    ),
    Wait(
        *("starting", "ranks of the first world, to start and to connect", "`start_timeout`", ""),
        *("fails: `start_timeout`", replace(forming(Stage.CONNECTING, world=1, holders=None), trained=False)),
        *(RECOVERY.start_timeout, Finish),
        kind=FailureKind.START_TIMEOUT,
    ),
    Wait(
        *("suspended", "workers, and the first world of a new session", "`max_wait`", ""),
        *("fails: `max_wait_exceeded`", forming(Stage.CONNECTING, world=1, holders=None), RECOVERY.max_wait, Finish),
        kind=FailureKind.MAX_WAIT_EXCEEDED,
        before=replace(NONE, trained=True),
    ),
    Wait(
        *("suspended", "workers, while ranks wait with the state", "`max_wait`", "", "fails: `max_wait_exceeded`"),
        *(facts(3, A, session=session(WAITING, "a", minimum=2), trained=True), RECOVERY.max_wait, Finish),
        kind=FailureKind.MAX_WAIT_EXCEEDED,
        settings=settings(2, 3, 3),
    ),
    Wait(
        *("paused", "a resume", "`max_pause`", "", "fails: `max_pause_exceeded`"),
        *(replace(NONE, pause=PauseFact("paused by ada"), trained=True), RECOVERY.max_pause, Finish),
        kind=FailureKind.MAX_PAUSE_EXCEEDED,
    ),
    Wait(
        *(
            "to be paused",
            "a commit that is durable",
            "`max_wait`",
            "",
            "The pause is refused. The run continues.",
        ),
        *(training(pause=PauseFact("paused by ada")), RECOVERY.max_wait, RefusePause),
    ),
    Wait(
        *("a world forms", "ranks, to start and to connect", "`timing.forming`", "the ranks that have not come"),
        "They are stopped. The others form another world.",
        *(forming(Stage.CONNECTING, awaited=("c",), arrived=HELD), TIMING.forming, ReformWorld),
        names="c did not come",
    ),
    Wait(
        *("a world is over", "ranks, to come back, when one has", "`timing.forming`", "the ranks that have not come"),
        "They are stopped. The others form another world.",
        *(forming(Stage.RETURNING, awaited=("b",), arrived=("a",)), TIMING.forming, ReformWorld),
        names="b did not come",
    ),
    Wait(
        *("a world is over", "ranks that were stopped, to end", "`timing.forming` once more", ""),
        "A new session begins.",
        *(forming(Stage.RETURNING, awaited=("b",), arrived=("a",), given_up=True), 2 * TIMING.forming, CloseSession),
    ),
    Wait(
        *("a world is over", "ranks, of which none has come back: all may evaluate", "`max_wait`", ""),
        "A new session begins at the newest durable checkpoint.",
        *(forming(Stage.RETURNING, awaited=HELD), RECOVERY.max_wait, CloseSession),
    ),
    Wait(
        *("a world is over", "ranks that report that they cannot come back", "none", "", "A new session begins."),
        *(forming(Stage.RETURNING, hung=True), 0.0, CloseSession),
    ),
    Wait(
        *("a world forms, or is over", "ranks of which none has the state", "`timing.forming`", ""),
        "A new session begins at the newest durable checkpoint.",
        *(forming(Stage.CONNECTING, holders=None, awaited=("c",)), TIMING.forming, CloseSession),
    ),
    Wait(
        *("running", "Horovod: new ranks, to call `hvd.init()`", "`timing.forming`", "the new ranks"),
        "They are stopped and started again. The others continue.",
        replace(COMMITS, session=replace(TRAIN, starting=("c",))),
        *(TIMING.forming, ReformWorld),
        names="c did not get ready",
    ),
    Wait(
        *("running", "torch.distributed: new ranks, to call the training function"),
        "the larger of `max_wait` and `start_timeout`",
        *("the new ranks", "They are stopped and started again. The others continue."),
        replace(COMMITS, session=replace(TRAIN, starting=("c",), prepares=True)),
        *(RECOVERY.max_wait, ReformWorld),
        names="c did not get ready",
    ),
    Wait(
        *("running", "a commit", "`standstill`", "[a rank that differs](#a-training-that-stands-still)"),
        "It is stopped. The others continue, and a new rank joins them.",
        *(training(), LEAST_STANDSTILL, EndStandstill),
        names="rank 1 (b): stands at data.py:7, while others wait",
        answers=LOADS,
    ),
    Wait(
        *("running", "the answer of a rank that is asked where it stands", "10 s", "the rank", "The same."),
        *(training(), LEAST_STANDSTILL + ANSWER, EndStandstill),
        names="rank 1 (b): its process does not answer",
        answers=MUTE,
    ),
    Wait(
        *("running", "the first commit of a world, or of a session", "twice `standstill`", "as above", "The same."),
        *(training(commits=CommitFact(0.0, 0.5, begun=False)), FIRST_COMMIT * LEAST_STANDSTILL, EndStandstill),
        names="rank 1 (b): stands at data.py:7",
        answers=LOADS,
    ),
    Wait(
        *("running", "a commit, while no rank waits for another", "three times `standstill`", "none"),
        "All form another world from the last commit.",
        *(training(), AT_WORK * LEAST_STANDSTILL, EndStandstill),
        names="no rank waits for another",
        answers=WORK,
    ),
    Wait(
        *("running", "a rank that is [`busy`](training-script.md#work-without-commits)"),
        *("its `at_most`, then `standstill`", "as above", "The same."),
        *(training(excused=3600.0), 3600.0 + LEAST_STANDSTILL, EndStandstill),
        answers=LOADS,
    ),
    Wait(
        *("running", "the first two commits of a run, when a rank does not move"),
        *("three times `standstill`", "as above", "The same."),
        *(training(commits=FIRST), FIRST_COMMIT * LEAST_STANDSTILL + LEAST_STANDSTILL, EndStandstill),
        names="rank 1 (b): stands at data.py:7",
        answers=LOADS,
    ),
    Wait(
        *("running", "the first two commits of a run, when nothing shows whether ranks move", "a day", "none"),
        "All form another world.",
        *(training(commits=FIRST), LONGEST_BUSY, EndStandstill),
        answers=WORK,
    ),
    Wait(
        *("running", "a rank that was stopped, to end", "`timing.stop_grace` + `timing.forming`", "the rank"),
        "Its worker is `lost` and replaced.",
        *(training(), LEAST_STANDSTILL + TIMING.stop_grace + TIMING.forming, GiveUpWorker),
        names="rank 1 (b): its process is stopped",
        answers=STOPPED,
    ),
    Wait(
        *("running", "a worker that sends no heartbeats, when commits stop"),
        *("3 heartbeats (`timing.heartbeat`)", "the worker", "It is `lost` and replaced."),
        training(heard={"a": 1e9, "b": 0.0, "c": 1e9}, commits=CommitFact(0.0, 0.1)),
        *((SILENT_BEATS + CONFIRMING_BEATS) * TIMING.heartbeat, GiveUpWorker),
        names="b is silent",
    ),
    Wait(
        *("running", "a worker with a notice, to be taken"),
        *("its deadline, less the time that its ranks need to leave", "", "Its ranks leave."),
        replace(
            training(leave_time=20.0),
            workers=(A, B, replace(worker("c", leaving=True, running=True), gone_at=300.0, punctual=True)),
        ),
        *(300.0 - 20.0 - LEAVE_MARGIN - 1, ListRanks),
    ),
    Wait(
        *("running", "the others' end of training, when some ranks have ended theirs", "5 × `timing.forming`"),
        *("the ranks that have not ended", "fails: `early_exit`"),
        *(training(ending=ONE_ENDED), ENDING * TIMING.forming, Finish),
        names="rank 0 ended its training at step 9, and ranks 1 and 2 have not",
        kind=FailureKind.EARLY_EXIT,
    ),
    Wait(
        *("running", "the last checkpoint, when all ranks have ended their training", "a day", ""),
        *("fails: `rank_failed`", training(ending=Ending(((0, 9), (1, 9), (2, 9)), ())), LAST_WRITE, Finish),
        kind=FailureKind.RANK_FAILED,
    ),
    Wait(
        *("running", "the last checkpoint of a rank in `finish()`, while others train", "a day"),
        *("[a rank that differs](#a-training-that-stands-still)", "It is stopped. The others continue."),
        *(training(ended=ONE_ENDED), LAST_WRITE, EndStandstill),
        answers=LOADS,
    ),
    Wait(
        *("running", "the first rank to end, when the training functions of all have returned", "a day", ""),
        *("fails: `rank_failed`", training(session=DONE, commits=None), LAST_WRITE, Finish),
        names="no rank has ended",
        kind=FailureKind.RANK_FAILED,
    ),
    Wait(
        *("running", "the other ranks to end, after one has ended with 0", "`max_wait`", "", "fails: `early_exit`"),
        training(session=session(SessionState.FINISHING, "a", "b", "c"), ended=ONE_ENDED),
        *(RECOVERY.max_wait, Finish),
        names="not all ranks have ended",
        kind=FailureKind.EARLY_EXIT,
    ),
)
