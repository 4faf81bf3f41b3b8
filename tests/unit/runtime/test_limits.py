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


def test_so_many_have_their_turn_at_once_and_the_newest_is_next() -> None:
    async def run() -> None:
        turns, order = FailureLimit(2.0, asyncio.get_running_loop().time), list[str]()
        tasks = await begun(*((turns, "a", name, order) for name in ("first", "second", "third", "fourth")))
        assert order == ["first", "second"]
        await asyncio.sleep(0.6)
        assert order == ["first", "second", "fourth"]
        await asyncio.sleep(0.6)
        assert order == ["first", "second", "fourth", "third"]
        await asyncio.gather(*tasks)

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
