"""A writer of the bucket, and a server that means no good."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from elastic_runtime.checkpoint.checkpoints import Checkpoints
from elastic_runtime.checkpoint.objects import download, store
from elastic_runtime.checkpoint.s3 import bucket
from elastic_runtime.errors import InvalidSettings, StoreUnavailable
from tests.faulty_proxy import FaultyProxy, Refuse, Send, matching
from tests.security.runtime.hostile_checkpoints import CONTENT, NAME, manifest, newest, part, signed, write
from tests.unit.checkpoints.s3_bench import Place

ENDLESS = 64 << 20
"""Bytes after which a test that is not protected ends all the same."""


@pytest.fixture
def honest(checkpoints: Checkpoints) -> Checkpoints:
    """With one of step 1."""
    write(checkpoints, 1)
    checkpoints.store.close()  # so that what comes next goes through a proxy, if there is one
    return checkpoints


def lay(place: Place, data: bytes, content: bytes = CONTENT) -> None:
    """The attacker's checkpoint, entered in the register too."""
    place.write(f"run/{NAME}/model.pt", content)
    place.write(f"run/{NAME}/manifest.json", data)
    register = place.read("run/.register").decode()
    place.write("run/.register", register.replace('"published":[', f'"published":["{NAME}",').encode())


def test_the_attacker_can_write_what_is_believed(honest: Checkpoints, place: Place) -> None:
    lay(place, manifest(part()))
    assert newest(honest) == (2, [])


@pytest.mark.parametrize(
    "data",
    [
        manifest(part("../../other/secret")),
        manifest(part("model.pt\n")),
        manifest(part(), part()),
        manifest(part(size=-1)),
        signed(b"[" * 100_000),
        signed(b" " * (5 << 20)),
    ],
    ids=["elsewhere", "line", "twice", "negative", "deep", "long"],
)
def test_a_manifest_that_is_none_of_ours_is_passed_over(honest: Checkpoints, place: Place, data: bytes) -> None:
    lay(place, data)
    step, reasons = newest(honest)
    assert step == 1
    assert len(reasons) == 1
    assert reasons[0].isprintable()


@pytest.mark.parametrize("real", [len(CONTENT) - 1, len(CONTENT) + 1, 9 << 20])
def test_an_object_of_another_size_is_not_downloaded(
    honest: Checkpoints, place: Place, proxy: FaultyProxy, real: int
) -> None:
    lay(place, manifest(part()), bytes(real))
    step, (reason,) = newest(honest)
    assert step == 1
    assert f"{real} bytes, not {len(CONTENT)}" in reason
    assert proxy.count("GET", f"{NAME}/model.pt") == 0


def endless(go_on: Callable[[bytes], object]) -> None:
    for _ in range(ENDLESS >> 20):
        go_on(bytes(1 << 20))


def test_a_server_that_sends_more_than_it_was_asked_for_is_cut_off(
    honest: Checkpoints, place: Place, proxy: FaultyProxy, pauses: list[float]
) -> None:
    lay(place, manifest(part()))
    for headers in ({}, {"Content-Length": str(ENDLESS)}):
        sent = []
        proxy.fault = matching(
            Send(headers, lambda go_on, sent=sent: endless(lambda data: sent.append(go_on(data)))), "GET", "model.pt"
        )
        with pytest.raises(StoreUnavailable, match="does not send what it was asked for"):
            newest(honest)


@pytest.mark.parametrize("key", ["model.pt", "manifest.json", ".register"])
def test_a_server_that_drips_is_given_up(
    honest: Checkpoints, place: Place, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    lay(place, manifest(part()))
    monkeypatch.setattr(download, "FIRST_BYTES_TIMEOUT", 1.0)
    monkeypatch.setattr(download, "_LOOK", 0.05)
    over = threading.Event()

    def drip(go_on: Callable[[bytes], object]) -> None:
        while not over.wait(0.05):
            go_on(b"x")

    proxy.fault = matching(Send({"Content-Length": str(len(CONTENT))}, drip), "GET", key)
    if key != "model.pt":
        proxy.fault = matching(Send({"Content-Length": "1000000", "ETag": '"1"'}, drip), "GET", key)
    started = time.monotonic()
    with pytest.raises(StoreUnavailable, match="too slowly"):
        newest(honest)
    assert time.monotonic() - started < 10
    over.set()


def test_an_answer_without_what_s3_says_with_each_is_as_good_as_none(
    honest: Checkpoints, place: Place, proxy: FaultyProxy
) -> None:
    lay(place, manifest(part()))
    for key in ("manifest.json", ".register"):
        proxy.fault = matching(Send({"Content-Length": "2"}, lambda go_on: go_on(b"{}")), "GET", key)
        with pytest.raises(StoreUnavailable, match="answers what S3 does not"):
            newest(honest)


@pytest.mark.parametrize(
    "register",
    [
        b"[" * 100_000,
        b'{"fence":1,"published":["ckpt-f' + b"9" * 5000 + b'-s1-t1-aa","../../x","a\\nb","\\ud800",""]}',
        b" " * (5 << 20),
        b'{"fence":' + b"9" * 5000 + b"}",
        b"\xff\xfe",
        b"",
        b"null",
    ],
    ids=["deep", "names", "long", "digits", "not UTF-8", "nothing", "null"],
)
def test_a_register_that_is_none_hides_nothing(honest: Checkpoints, place: Place, register: bytes) -> None:
    place.write("run/.register", register)
    found = newest(honest)
    assert found in ((1, []), (None, [])), "of the names of somebody else's register none is ours"
    write(honest, 2)
    assert newest(honest) == (2, [])


def test_keys_that_are_none_of_ours_are_not_listed(
    honest: Checkpoints, place: Place, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        place.write(f"run/junk{number}/manifest.json", b"")
    place.delete("run/.register")
    assert newest(honest) == (1, [])
    assert len(proxy.seen) < 15


def test_a_listing_has_an_end(
    honest: Checkpoints, place: Place, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "MOST_LISTED", 3)
    monkeypatch.setattr(bucket, "PAGE", 1)
    monkeypatch.setattr(bucket.S3Bucket, "objects", lambda self, prefix: [bucket.Listed(prefix, 0.0)])
    pages = []

    def answer(request: object) -> Send | None:
        if "list-type" not in request.path:  # type: ignore[attr-defined]
            return None
        pages.append(request)
        name = f"run/ckpt-f1-s{len(pages)}-t1-aa/"
        text = (
            "<ListBucketResult><IsTruncated>true</IsTruncated>"
            f"<NextContinuationToken>{len(pages)}</NextContinuationToken>"
            f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes></ListBucketResult>"
        ).encode()
        return Send({"Content-Length": str(len(text)), "Content-Type": "application/xml"}, lambda go_on: go_on(text))

    proxy.fault = answer
    place.delete("run/.register")
    assert len(honest.store.names()) == 3
    assert len(pages) == 3


def test_markers_that_are_none_of_ours_remove_nothing(
    honest: Checkpoints, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SILENCE", -1.0)
    victims = ["run/x/y", "run/ckpt-f1/y"]
    for key in [*victims, "run/.draft-", "run/.draft-x", "run/.draft-ckpt-f1"]:
        place.write(key, b"")
    write(honest, 2)
    assert set(victims) <= set(place.keys())


def test_what_is_left_of_one_checkpoint_is_removed_little_by_little(
    honest: Checkpoints, place: Place, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SILENCE", -1.0)
    monkeypatch.setattr(store, "SWEEP", -1.0)
    monkeypatch.setattr(store, "_MOST_REMOVED", 4)
    for number in range(6):
        place.write(f"run/{NAME}/{number}", b"")
    place.write(f"run/.draft-{NAME}", b"")
    for left in (2, 0):
        before = proxy.count("DELETE")
        write(honest, 2)
        assert " ".join(place.keys()).count(NAME) == left + (left > 0)  # with the marker
        assert proxy.count("DELETE") - before < 10


@pytest.mark.parametrize(("status", "code"), [(503, "Slow&#10;launcher: run succeeded"), (403, "AccessDenied")])
def test_what_a_server_says_is_one_line(
    honest: Checkpoints, proxy: FaultyProxy, pauses: list[float], status: int, code: str
) -> None:
    proxy.fault = lambda request: Refuse(status, code, "no&#10;launcher: run succeeded ::endgroup::" + "x" * 5000)
    with pytest.raises((StoreUnavailable, InvalidSettings)) as refused:
        honest.claim()
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 1000
    assert "::endgroup::" not in str(refused.value)
