"""A run's life in any place: what a claim decides, and that no order of events lets two parties win."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.errors import FailureKind, InvalidDocument, OwnershipLost, RunNotFound
from elastic_runtime.run.spec import RunSpec, WorkersSpec
from elastic_runtime.run.status import Phase, Status
from elastic_training.clusters.claims import Action, Observed, Times, decide_claim
from elastic_training.clusters.document import (
    MAX_REQUESTS,
    NOBODY,
    RunDocument,
    SizeRequest,
    StoredLogLease,
    read_requests,
)
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.types import Claim, ClaimOutcome
from tests.unit.provider.virtual_time import run_virtually

NOW = datetime(2026, 3, 1, tzinfo=UTC)
TIMES = Times()
SPEC = RunSpec("run", "wanted", ("python",))

documents = st.builds(
    RunDocument,
    spec=st.sampled_from([SPEC, replace(SPEC, uid="another")]),
    owner=st.sampled_from(["me", "you"]),
    created=st.sampled_from([NOW - timedelta(days=1), NOW]),
    renewed=st.just(NOW),
    cancelled=st.sampled_from([None, "enough"]),
    collected=st.booleans(),
    log_lease=st.sampled_from([None, StoredLogLease("token", "7"), StoredLogLease(NOBODY, "7")]),
    complete=st.booleans(),
    going=st.booleans(),
)
sightings = st.builds(
    lambda phase, launcher: Observed(Status("run", "another", phase, "so it is", NOW), launcher),
    st.sampled_from(Phase),
    st.booleans(),
)
waits = st.sampled_from([0.0, 29.0, 31.0, 61.0])


def decided(found: RunDocument | None, seen: Observed | None, **more: Any) -> Action:
    settings: dict[str, Any] = {"fresh": False, "waited": 0.0, "now": NOW, "times": TIMES} | more
    return decide_claim(found, seen, SPEC, "me", **settings).action


class TestDecision:
    @given(documents, sightings, st.booleans(), waits)
    def test_only_what_lives_or_has_a_result_is_adopted(
        self, found: RunDocument, seen: Observed, fresh: bool, waited: float
    ) -> None:
        if decided(found, seen, fresh=fresh, waited=waited) is Action.ADOPT:
            assert found.complete
            assert not found.going
            assert not fresh or found.spec.uid == SPEC.uid
            alive = not seen.status.phase.final and found.cancelled is None
            assert alive or (seen.status.phase is Phase.SUCCEEDED and not found.collected)

    @given(documents, sightings, st.booleans(), waits)
    def test_nothing_is_created_over_another_run(
        self, found: RunDocument, seen: Observed, fresh: bool, waited: float
    ) -> None:
        if decided(found, seen, fresh=fresh, waited=waited) is Action.CREATE:
            assert found.spec.uid == SPEC.uid
            assert not found.complete

    @given(documents, sightings, st.booleans())
    def test_a_claim_that_waits_long_enough_always_goes_on(
        self, found: RunDocument, seen: Observed, fresh: bool
    ) -> None:
        asked = replace(found, cancelled=found.cancelled or "a new try")
        assert decided(asked, seen, fresh=fresh, waited=3600.0) is not Action.WAIT

    @given(documents, sightings, waits)
    def test_a_living_run_is_asked_to_end_once_and_removed_only_later(
        self, found: RunDocument, seen: Observed, waited: float
    ) -> None:
        action = decided(found, seen, fresh=True, waited=waited)
        living = found.complete and not found.going and seen.launcher and not seen.status.phase.final
        if action is Action.ASK_TO_END:
            assert living
            assert found.cancelled is None
        if action is Action.REMOVE and living:
            assert waited > TIMES.order

    def test_a_name_that_is_free_is_created(self) -> None:
        assert decided(None, None) is Action.CREATE


class TestFences:
    @given(documents, st.sampled_from(["me", "you"]))
    def test_only_the_owner_changes_what_is_the_owners(self, found: RunDocument, owner: str) -> None:
        for change in (
            lambda: found.check_owner(owner),
            lambda: found.taken(owner),
            lambda: found.leased(owner, "new", NOW),
        ):
            if found.owner == owner:
                change()
            else:
                with pytest.raises(OwnershipLost):
                    change()

    @given(documents)
    def test_an_adoption_is_idempotent_and_revokes_the_log_lease_at_its_cursor(self, found: RunDocument) -> None:
        once = found.adopted("new", NOW)
        assert once.adopted("new", NOW) == once
        assert once.cursor == found.cursor
        assert not once.watched
        for token in ("token", NOBODY):
            with pytest.raises(OwnershipLost):
                once.kept(token, NOW)

    @given(documents)
    def test_the_last_to_take_the_log_lease_holds_it(self, found: RunDocument) -> None:
        first = found.leased(found.owner, "first", NOW)
        last = first.leased(found.owner, "last", NOW)
        assert last.kept("last", NOW, "9").cursor == "9"
        with pytest.raises(OwnershipLost):
            last.kept("first", NOW)

    def test_the_first_reason_to_end_stays(self) -> None:
        found = RunDocument(SPEC, "me", NOW, NOW)
        assert found.asked_to_end("enough").asked_to_end("really").cancelled == "enough"

    def test_requests_are_bounded_and_the_newest_stay(self) -> None:
        found = RunDocument(SPEC, "me", NOW, NOW)
        for number in range(MAX_REQUESTS + 1):
            found = found.asked_for(SizeRequest(f"wish {number}", workers=2, asked=NOW, done=False))
        assert len(found.requests) == MAX_REQUESTS
        assert found.requests[-1].name == f"wish {MAX_REQUESTS}"

    def test_a_request_is_understood_once(self) -> None:
        first = SizeRequest("wish", workers=2, asked=NOW, done=False)
        found = RunDocument(SPEC, "me", NOW, NOW).asked_for(first).asked_for(SizeRequest("wish", workers=4, asked=NOW))
        assert found.requested("wish") == first
        assert found.resized("wish").requested("wish") == replace(first, done=True)

    def test_requests_of_which_only_the_names_are_known_were_carried_out(self) -> None:
        assert read_requests(["a wish"]) == (SizeRequest("a wish", done=True),)
        for garbage in ("a wish", [3], [{"workers": 3}], [{"name": "a", "workers": "3"}]):
            with pytest.raises(InvalidDocument):
                read_requests(garbage)


class Interleaved(FakeCluster):
    """In which others may be faster between any two steps, in an order that the seed gives."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        chance = random.Random(seed)
        place: Any = self._place
        for name in ("read", "create", "change", "remove", "observe", "scale", "resize"):
            setattr(place, name, self._after_others(getattr(place, name), chance))

    @staticmethod
    def _after_others(method: Any, chance: random.Random) -> Any:
        async def called(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(chance.random())
            return await method(*args, **kwargs)

        return called


def spec(number: int) -> RunSpec:
    return RunSpec("run", f"uid {number}", ("python",), WorkersSpec(1, 2, 4))


seeds = st.integers(0, 1 << 32)


class TestManyAtOnce:
    @given(seeds, st.integers(2, 5))
    def test_one_creates_all_others_adopt_and_one_owns(self, seed: int, claimers: int) -> None:
        async def race() -> None:
            cluster = Interleaved(seed)
            claims = await asyncio.gather(*(cluster.claim(spec(n), f"try {n}") for n in range(claimers)))
            assert [claim.outcome for claim in claims].count(ClaimOutcome.CREATED) == 1
            (ref,) = {claim.ref for claim in claims}
            owners = []
            for number in range(claimers):
                try:
                    await cluster.take_log_lease(ref, f"try {number}")
                except OwnershipLost:
                    continue
                owners.append(f"try {number}")
            assert owners == [await cluster.owner(ref)]

        run_virtually(race())

    @given(seeds, st.lists(st.booleans(), min_size=2, max_size=4))
    def test_whoever_starts_over_has_a_run_that_no_one_had_before(self, seed: int, fresh: list[bool]) -> None:
        async def race() -> None:
            cluster = Interleaved(seed)

            async def claim(number: int) -> Claim:
                return await cluster.claim(spec(number), f"try {number}", fresh=fresh[number])

            claims = await asyncio.gather(*map(claim, range(len(fresh))))
            for number, claim_made in enumerate(claims):
                if fresh[number]:
                    assert claim_made.ref.uid == f"uid {number}"
            assert await cluster.find("run") in [claim_made.ref for claim_made in claims]

        run_virtually(race())

    @given(seeds)
    def test_a_try_that_was_replaced_ends_nothing(self, seed: int) -> None:
        async def race() -> None:
            cluster = Interleaved(seed)
            ref = (await cluster.claim(spec(0), "old")).ref
            results = await asyncio.gather(
                cluster.claim(spec(1), "new"),
                cluster.cancel(ref, "late", "old"),
                cluster.collect(ref, "old"),
                return_exceptions=True,
            )
            claim = results[0]
            assert isinstance(claim, Claim)
            status = await cluster.status(claim.ref)
            if claim.ref == ref and claim.outcome is ClaimOutcome.ADOPTED:
                assert isinstance(results[1], OwnershipLost) or status.failure is FailureKind.CANCELLED
            if isinstance(results[1], OwnershipLost):
                assert status.phase is Phase.RUNNING
            with pytest.raises((OwnershipLost, RunNotFound)):
                await cluster.take_log_lease(ref, "old")

        run_virtually(race())

    @given(seeds, st.integers(2, 4))
    def test_a_request_for_a_size_counts_once(self, seed: int, callers: int) -> None:
        async def race() -> None:
            cluster = Interleaved(seed)
            ref = (await cluster.claim(spec(0), "me")).ref
            await asyncio.gather(*(cluster.ask(ref, 4, "wish") for _ in range(callers)))
            await cluster.ask(ref, 1, "another")
            assert (await cluster.ask(ref, 4, "wish")).done
            assert await cluster.size(ref) == 1

        run_virtually(race())


def test_a_list_begins_with_the_newest_run_whoever_owns_it() -> None:
    async def made() -> list[tuple[str, str]]:
        cluster = FakeCluster()
        for number, name in enumerate(("b", "a", "c")):
            await cluster.claim(RunSpec(name, "uid", ("python",)), f"try {number}")
        return [(each.ref.name, each.owner) for each in await cluster.list()]

    assert run_virtually(made()) == [("c", "try 2"), ("a", "try 1"), ("b", "try 0")]
