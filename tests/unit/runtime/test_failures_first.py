"""Which rank failed first, and what it said."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest

from elastic_runtime.launcher.record.failures import LINE, LINES, Failed, Failures, first_of
from elastic_runtime.launcher.record.tracebacks import Cause, read_last_words
from elastic_runtime.run.status_failure import MAX_TRACEBACK, FirstFailure

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
OWN = """\
step 41
Traceback (most recent call last):
  File "/srv/train.py", line 7, in <module>
    main()
    ~~~~^^
  File "/srv/train.py", line 4, in main
    raise ValueError("no such sample: 4711")
ValueError: no such sample: 4711
""".splitlines()
LOST_PEER = """\
Traceback (most recent call last):
  File "/srv/train.py", line 9, in main
    hvd.allreduce(gradient)
horovod.common.exceptions.HorovodInternalError: [/tmp/gloo/transport/tcp/pair.cc:598] Connection closed by peer
""".splitlines()
CHAINED = [
    *LOST_PEER,
    "",
    "During handling of the above exception, another exception occurred:",
    "",
    "Traceback (most recent call last):",
    '  File "/srv/train.py", line 12, in main',
    "RuntimeError: the training is broken",
]
ABORTED = [
    "terminate called after throwing an instance of 'gloo::IoException'",
    "  what():  [pair.cc:598] Connection reset by peer",
]
CRASH = ["Fatal Python error: Segmentation fault", "", "Current thread 0x1 (most recent call first):", "  File x in y"]

IN_USER_CODE = """\
Traceback (most recent call last):
  File "/srv/train.py", line 14, in <module>
    model.fit(features, labels)
TypeError: in user code:

    File "/venv/keras/src/engine/training.py", line 1401, in train_function  *
        return step_function(self, iterator)
    File "/srv/train.py", line 8, in train_step
        features - labels

    TypeError: Input 'y' of 'Sub' Op has type float64 that does not match type float32 of argument 'x'.

""".splitlines()
GRAPH = """\
Traceback (most recent call last):
  File "/srv/train.py", line 14, in <module>
    model.fit(features, labels)
tensorflow.python.framework.errors_impl.{kind}: Graph execution error:

Detected at node {node} defined at (most recent call last):
  File "/srv/train.py", line 14, in <module>

  File "/venv/keras/src/engine/training.py", line 1401, in train_function

{what}
\t [[{{{{node {node}}}}}]] [Op:__inference_train_function_429]
"""
ASSERTED = GRAPH.format(
    kind="InvalidArgumentError", node="assert_less/Assert", what="assertion failed: [labels are wrong]"
).splitlines()
SHUT_DOWN = "Horovod has been shut down. This was caused by an exception on one of the ranks"
LOST_IN_GRAPH = GRAPH.format(kind="UnknownError", node="HorovodAllreduce_grads_1_0", what=SHUT_DOWN).splitlines()
ROOTS = f"2 root error(s) found.\n  (0) UNKNOWN:  {SHUT_DOWN}\n\t [[{{{{node all}}}}]]\n  (1) CANCELLED:  it was"
SEVERAL_IN_GRAPH = GRAPH.format(kind="UnknownError", node="all", what=ROOTS).splitlines()
OF_TENSORFLOW = "tensorflow.python.framework.errors_impl."


class TestLastWords:
    @pytest.mark.parametrize(
        ("lines", "code", "cause", "message", "begin"),
        [
            (OWN, 1, Cause.OWN, "ValueError: no such sample: 4711", "Traceback"),
            ([*OWN, "[W] leaked semaphore"], 1, Cause.OWN, "ValueError: no such sample: 4711", "Traceback"),
            (OWN[3:], 1, Cause.OWN, "ValueError: no such sample: 4711", "    main()"),
            (CRASH, -11, Cause.OWN, "Fatal Python error: Segmentation fault", "Fatal"),
            (LOST_PEER, 1, Cause.CONSEQUENCE, LOST_PEER[-1], "Traceback"),
            (CHAINED, 1, Cause.CONSEQUENCE, "RuntimeError: the training is broken", "Traceback"),
            ([*LOST_PEER, "it goes on", *OWN], 1, Cause.OWN, "ValueError: no such sample: 4711", OWN[1]),
            (ABORTED, -6, Cause.CONSEQUENCE, "ended with SIGABRT", "terminate"),
            (IN_USER_CODE, 1, Cause.OWN, IN_USER_CODE[-2].strip(), "Traceback"),
            (
                ASSERTED,
                1,
                Cause.OWN,
                f"{OF_TENSORFLOW}InvalidArgumentError: assertion failed: [labels are wrong]",
                "Traceback",
            ),
            (LOST_IN_GRAPH, 1, Cause.CONSEQUENCE, f"{OF_TENSORFLOW}UnknownError: {SHUT_DOWN}", "Traceback"),
            (LOST_IN_GRAPH[2:], 1, Cause.CONSEQUENCE, f"{OF_TENSORFLOW}UnknownError: {SHUT_DOWN}", "    model"),
            (SEVERAL_IN_GRAPH, 1, Cause.CONSEQUENCE, f"{OF_TENSORFLOW}UnknownError: {SHUT_DOWN}", "Traceback"),
            (ASSERTED[:4], 1, Cause.OWN, ASSERTED[3], "Traceback"),
            (["bye"], 3, Cause.SILENT, "bye", "bye"),
            ([], 3, Cause.SILENT, "ended with code 3", ""),
            (["step 41"], -9, Cause.SILENT, "ended with SIGKILL", "step 41"),
        ],
    )
    def test_tell_what_was_raised(self, lines: list[str], code: int, cause: Cause, message: str, begin: str) -> None:
        words = read_last_words(lines, code)
        assert (words.cause, words.message) == (cause, message)
        assert words.traceback.startswith(begin)

    def test_of_a_chain_hold_its_first_part(self) -> None:
        assert "HorovodInternalError" in read_last_words(CHAINED, 1).traceback

    def test_are_bounded_at_their_begin_and_keep_the_end(self) -> None:
        words = read_last_words([OWN[1], *(f"  File {number} {'x' * 300}" for number in range(99)), "KeyError: 1"], 1)
        assert len(words.traceback) == MAX_TRACEBACK
        assert words.traceback.endswith("\nKeyError: 1")

    def test_hold_nothing_that_moves_a_cursor_or_folds_a_log(self) -> None:
        words = read_last_words([OWN[1], "  File x", "ValueError: \x1b[2J::group::\r\u202e"], 1)
        assert not set("\x1b\r\u202e") & set(words.message + words.traceback)
        assert "::group::" not in words.traceback


def failed(rank: int, cause: Cause, second: float) -> Failed:
    time = NOON + timedelta(seconds=second)
    return Failed(cause, FirstFailure(rank, f"worker-{rank}", f"worker-{rank}.0.0", 7, 1, time, "it", ""))


class TestChoice:
    @pytest.mark.parametrize(
        "others",
        [
            [failed(0, Cause.CONSEQUENCE, 0.0), failed(2, Cause.CONSEQUENCE, 0.5)],
            [failed(0, Cause.SILENT, 0.0), failed(2, Cause.CONSEQUENCE, 0.5)],
            [failed(0, Cause.OWN, 1.5), failed(2, Cause.SILENT, 2.0)],
            [],
        ],
    )
    def test_is_the_cause_in_whichever_order_they_are_told(self, others: list[Failed]) -> None:
        for order in itertools.permutations([failed(1, Cause.OWN, 1.0), *others]):
            first = first_of(order)
            assert first is not None
            assert first.rank == 1

    def test_is_the_first_that_was_killed_where_the_others_only_miss_it(self) -> None:
        told = [failed(0, Cause.CONSEQUENCE, 0.0), failed(1, Cause.SILENT, 1.0), failed(2, Cause.SILENT, 2.0)]
        for order in itertools.permutations(told):
            first = first_of(order)
            assert first is not None
            assert first.rank == 1

    def test_is_nobody_where_none_failed(self) -> None:
        assert first_of([]) is None


class TestFailures:
    def test_go_by_the_end_and_not_by_the_word_of_it(self) -> None:
        failures = Failures(lambda: NOON)
        for worker, ago in (("worker-0", 0.1), ("worker-1", 2.0)):
            failures.heard(f"{worker}.0.0~0", OWN)
            failures.ended(f"{worker}.0.0~0", ago)
            failures.failed(f"{worker}.0.0", 1, worker, None, 5)
        assert failures.first is not None
        assert (failures.first.worker, failures.first.time) == ("worker-1", NOON - timedelta(seconds=2))

    def test_of_a_world_that_was_overcome_do_not_count(self) -> None:
        failures = Failures(lambda: NOON)
        failures.failed("worker-0.0.0", 1, "worker-0", 0, 5)
        failures.world()
        assert failures.first is None

    def test_of_a_process_are_not_blamed_on_the_next_under_its_name(self) -> None:
        failures = Failures(lambda: NOON)
        failures.heard("worker-0.0.0~0", OWN)
        failures.failed("worker-0.0.0", 1, "worker-0", 0, 5)
        failures.world()
        failures.failed("worker-0.0.0", -9, "worker-0", 0, 5)
        assert failures.first is not None
        assert (failures.first.message, failures.first.traceback) == ("ended with SIGKILL", "")

    def test_keep_little_of_a_worker_that_claims_many_ranks_and_writes_much(self) -> None:
        failures = Failures(lambda: NOON)
        for incarnation in range(1000):
            failures.heard(f"worker-0.0.{incarnation}", ["x" * 60_000] * 10)
        kept = failures._spoken  # what is held, not what is told
        lines = [line for slots in kept.values() for spoken in slots.values() for line in spoken.lines]
        assert len(lines) <= LINES
        assert all(len(line) <= LINE for line in lines)
        failures.gone("worker-0")
        assert not kept


TIMED_OUT = """\
Traceback (most recent call last):
  File "/srv/train.py", line 9, in main
    dist.all_reduce(gradient)
RuntimeError: [/gloo/transport/tcp/unbound_buffer.cc:89] Timed out waiting 3000ms for recv operation to complete
""".splitlines()
IN_A_LOCK = """\
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/usr/lib/python3.11/site-packages/tqdm/_monitor.py", line 60 in run

Current thread 0x00007f02 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 169 in acquire
  File "/srv/train.py", line 12 in cached
  File "/srv/train.py", line 40 in main
""".splitlines()
IN_A_COLLECTIVE = """\
Current thread 0x00007f02 (most recent call first):
  File "/usr/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3100 in all_reduce
  File "/srv/train.py", line 40 in main
""".splitlines()


class TestHung:
    def of(self, others: list[str], stack: list[str]) -> tuple[Failures, str | None]:
        failures = Failures(lambda: NOON)
        for rank in (0, 2):
            failures.heard(f"worker-{rank}.0.0~0", others)
            failures.failed(f"worker-{rank}.0.0", 1, f"worker-{rank}", rank, 5)
        failures.heard("worker-1.0.0~0", ["step 41", *stack])
        return failures, failures.hung("worker-1.0.0", -9, "worker-1", 1, 5)

    def test_is_named_where_all_others_only_miss_it(self) -> None:
        failures, at = self.of(TIMED_OUT, IN_A_LOCK)
        assert at == 'File "/srv/train.py", line 12 in cached'
        assert failures.first is not None
        assert failures.first.rank == 1
        assert failures.first.message == f"was still at work when others gave up waiting for it: {at}"
        assert failures.first.traceback.splitlines() == IN_A_LOCK[4:]

    @pytest.mark.parametrize(
        ("others", "stack"), [(OWN, IN_A_LOCK), (TIMED_OUT, IN_A_COLLECTIVE), (TIMED_OUT, []), (["bye"], IN_A_LOCK)]
    )
    def test_is_not_blamed_where_another_is_or_it_waited_itself(self, others: list[str], stack: list[str]) -> None:
        failures, at = self.of(others, stack)
        assert at is None
        assert failures.first is not None
        assert failures.first.rank == 0


@pytest.mark.parametrize(
    ("said", "is_consequence"),
    [
        ([], False),
        ([LOST_PEER], True),
        ([LOST_PEER, TIMED_OUT], True),
        ([LOST_PEER, OWN], False),
        ([LOST_PEER, []], False),
    ],
)
def test_ranks_fail_for_the_sake_of_others_alone_where_all_say_so(said: list[list[str]], is_consequence: bool) -> None:
    failures = Failures(lambda: NOON)
    for rank, lines in enumerate(said):
        failures.heard(f"worker-{rank}.0.0~0", lines)
        failures.failed(f"worker-{rank}.0.0", 1, f"worker-{rank}", rank, 5)
    assert failures.is_consequence is is_consequence
    failures.world()
    assert not failures.is_consequence
