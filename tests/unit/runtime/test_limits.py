"""Whose turn it is, where tries that fail are limited."""

from __future__ import annotations

import asyncio

from elastic_runtime.launcher.limits import FailureLimit
from tests.unit.provider.virtual_time import run_virtually


async def taking(turns: FailureLimit, address: str, name: str, order: list[str]) -> None:
    await turns.wait(address)
    order.append(name)


async def begun(*waits: tuple[FailureLimit, str, str, list[str]]) -> list[asyncio.Task[None]]:
    tasks = [asyncio.ensure_future(taking(*each)) for each in waits]
    await asyncio.sleep(0)
    return tasks


def test_so_many_have_their_turn_at_once_and_the_others_in_time() -> None:
    async def run() -> None:
        turns, order = FailureLimit(2.0, asyncio.get_running_loop().time), list[str]()
        tasks = await begun(*((turns, "a", name, order) for name in ("first", "second", "third", "fourth")))
        assert order == ["first", "second"]
        await asyncio.sleep(0.6)
        assert len(order) == 3
        await asyncio.sleep(0.6)
        assert sorted(order[2:]) == ["fourth", "third"]
        await asyncio.gather(*tasks)

    run_virtually(run())


def test_strangers_who_come_back_after_each_turn_hold_up_nobody_of_their_address() -> None:
    """One that comes while a stranger has its turn is not the newest any more when the next turn is due."""

    async def run() -> None:
        turns, has_turn = FailureLimit(64.0, asyncio.get_running_loop().time), asyncio.Event()

        async def come_back() -> None:
            while True:
                await turns.wait("a")
                has_turn.set()
                await asyncio.sleep(1 / 256)  # Sums of binary fractions are exact, as virtual time has to be here.

        strangers = [asyncio.ensure_future(come_back()) for _ in range(5)]
        await asyncio.sleep(2.0)  # Of the turns that are there at once, none is left.
        has_turn.clear()
        await has_turn.wait()
        async with asyncio.timeout(5.0):  # 320 turns: by chance in one of 10**25 runs.
            await turns.wait("a")
        for stranger in strangers:
            stranger.cancel()
        await asyncio.gather(*strangers, return_exceptions=True)

    run_virtually(run())


def test_a_crowd_of_one_address_is_behind_another_address() -> None:
    async def run() -> None:
        turns, order = FailureLimit(1.0, asyncio.get_running_loop().time), list[str]()
        tasks = await begun((turns, "a", "spent", order), (turns, "b", "alone", order))
        tasks += await begun(*((turns, "a", "crowd", order) for _ in range(3)))
        await asyncio.sleep(1.1)
        assert order == ["spent", "alone"]
        await asyncio.sleep(3.0)
        assert order == ["spent", "alone", "crowd", "crowd", "crowd"]
        await asyncio.gather(*tasks)

    run_virtually(run())


def test_what_does_not_fail_costs_no_turn() -> None:
    async def run() -> None:
        turns, order = FailureLimit(1.0, asyncio.get_running_loop().time), list[str]()
        begin = asyncio.get_running_loop().time()
        for name in "abcde":
            await taking(turns, "a", name, order)
            turns.give_back()
        assert asyncio.get_running_loop().time() == begin

    run_virtually(run())


def test_one_that_has_gone_takes_no_turn() -> None:
    async def run() -> None:
        turns, order = FailureLimit(1.0, asyncio.get_running_loop().time), list[str]()
        _, waiting, gone = await begun(*((turns, "a", name, order) for name in ("spent", "waits", "goes")))
        gone.cancel()
        await asyncio.sleep(1.1)
        assert order == ["spent", "waits"]
        await waiting

    run_virtually(run())
