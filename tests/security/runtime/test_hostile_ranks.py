"""A training script that speaks over the link to its agent itself, and says what it likes, as much as it likes."""

from __future__ import annotations

import asyncio
import os

import pytest

from elastic_runtime.agent.ranks import Ranks
from elastic_runtime.protocol.plausible import LINES
from elastic_runtime.protocol.rank_sockets import RANK_FD
from elastic_runtime.protocol.wire import AgentMessage, Output, RankExited, RankSaid
from tests.unit.runtime.worker_bench import Worker, code, with_worker

WRITE = f"import json, os; write = lambda data: os.write(int(os.environ['{RANK_FD}']), data);"


@pytest.mark.parametrize(
    "words",
    [
        'b\'{"type":"progress","step":1e999}\\n\'',
        'b\'{"type":"metrics","values":{"loss":1e999}}\\n\'',
        'b\'{"type":"progress","step":\' + b"9" * 4000 + b"}\\n"',
        'b\'{"type":"colour","of":"the sky"}\\n\'',
        'b\'{"type":["progress"]}\\n\'',
        'b\'{"type":"outputs_saved","files":-1,"bytes":1}\\n\'',
        'b\'{"type":"resumed","uri":"a\\\\u000ab","step":1}\\n\'',
        *(
            f"json.dumps({{'type': 'returned', 'value': {value}}}).encode() + b'\\n'"
            for value in (
                "'[' * 8000",
                "'1' * 8193",
                "'1' * 5000",
                "'NaN'",
                "'1e999'",
                "'no JSON'",
                "'1, 2'",
                "''",
                "7",
            )
        ),
        r"""json.dumps({'type': 'returned', 'value': '"\\ud800"'}).encode() + b'\n'""",
        r"""json.dumps({'type': 'returned', 'value': '"\\u0000"'}).encode() + b'\n'""",
    ],
)
def test_what_no_rank_has_to_say_is_left_out_and_the_rest_is_heard(words: str) -> None:
    async def test(worker: Worker) -> None:
        good = 'write(b\'{"type":"progress","step":7}\\n\')'
        assert await worker.run("a", code(f"{WRITE} write({words}); {good}")) == 0
        assert [said.message for said in worker.of(RankSaid)] == [{"type": "progress", "step": 7}]

    with_worker(True, test)


@pytest.mark.parametrize("words", ['b"[" * 60_000 + b"\\n"', 'b"x" * 100_000', 'b"NaN\\n"'])
def test_one_that_talks_nonsense_is_not_listened_to_and_trains_on(words: str) -> None:
    async def test(worker: Worker) -> None:
        assert await worker.run("a", code(f"{WRITE} write({words}); print('trained')")) == 0
        assert worker.lines("a", "stdout") == ["trained"]
        assert worker.of(RankSaid) == []

    with_worker(True, test)


def test_lines_come_in_messages_that_the_launcher_takes() -> None:
    async def test(worker: Worker) -> None:
        assert await worker.run("a", code("import os; os.write(1, b'\\n' * 50_000)")) == 0
        assert len(worker.lines("a", "stdout")) == 50_000
        assert max(len(each.lines) for each in worker.of(Output)) <= LINES

    with_worker(True, test)


def test_one_that_writes_more_than_the_launcher_takes_waits() -> None:
    """Instead of filling its agent's memory."""
    messages: list[AgentMessage] = []
    command = code("import os\nfor _ in range(200): os.write(1, b'x' * 99_999 + b'\\n')")

    async def run() -> None:
        taken, ended = asyncio.Event(), asyncio.Event()

        def hear(message: AgentMessage) -> None:
            messages.append(message)
            if isinstance(message, RankExited):
                ended.set()

        async def drained() -> None:
            await taken.wait()

        ranks = Ranks(hear, os.environ, None, drained)
        ranks.start(None)
        try:
            ranks.start_rank("a", command, {}, None)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.0):
                    await ended.wait()
            assert written(messages) < 500_000
            taken.set()
            async with asyncio.timeout(20.0):
                await ended.wait()
        finally:
            await ranks.close()
        assert written(messages) == 200 * 99_999

    asyncio.run(run())


def written(messages: list[AgentMessage]) -> int:
    return sum(len(line) for each in messages if isinstance(each, Output) for line in each.lines)
