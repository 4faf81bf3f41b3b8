"""A namespace in memory: an API server's answers to the requests of this project, one level below its client.

That they are a real one's is checked by :mod:`tests.unit.runtime.kubernetes_contract`, on this one and on real ones.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import aiohttp

from elastic_runtime.kubernetes import resources
from elastic_runtime.kubernetes.client import ChangeKind, Client
from elastic_runtime.kubernetes.objects import Object
from elastic_runtime.kubernetes.resources import REPLICA_SETS, Kind
from elastic_runtime.kubernetes.transport import Transport
from tests.unit.runtime.token_issuer import Issuer, claims

Plain = dict[str, Any]
NAMESPACE = "ns"
_KINDS = {each.plural: each for each in vars(resources).values() if isinstance(each, Kind)}
_VERBS = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}


class Refused(Exception):
    def __init__(self, status: int, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.status, self.message, self.reason = status, message, reason


class Answer:
    """As aiohttp's, so far as it is used."""

    connection = None

    def __init__(self, status: int, content: Plain | Events, headers: dict[str, str]) -> None:
        self.status, self._content, self.headers = status, content, headers

    async def read(self) -> bytes:
        return json.dumps(self._content).encode()

    @property
    def content(self) -> Answer:
        return self

    def iter_any(self) -> AsyncIterator[bytes]:
        assert isinstance(self._content, Events)
        return self._content

    def close(self) -> None:
        """There is no connection."""


class FakePlace:
    """An API server with one namespace; ``api`` is a client of it, all other methods are the world's."""

    def __init__(self) -> None:
        self.api = Client(Transport(self), NAMESPACE)
        self.away = False
        """Whether it does not answer; watches are cut by :meth:`go_away`."""
        self.forbidden: set[tuple[str, Kind[Any]]] = set()
        """Verb and kind."""
        self.without: set[str] = set()
        """Rights that are missing beside these: ``patch pods/resize``."""
        self.resizes = True
        """Whether it serves the subresource ``resize`` of pods: Kubernetes 1.33."""
        self.calls: Counter[tuple[str, Kind[Any]]] = Counter()
        """Of each verb and kind, those that were refused included."""
        self.issuer = Issuer()
        self.keys_refused: int | None = None
        """HTTP status of the answer to who asks for the issuer's keys."""
        self.keys_asked = 0
        self.keys_held = asyncio.Event()
        """Not set: nobody who asks for them gets an answer."""
        self.keys_held.set()
        self.version = 100
        self.oldest = 0
        self._objects: dict[Kind[Any], dict[str, Plain]] = defaultdict(dict)
        self.history: list[tuple[int, Kind[Any], ChangeKind, Plain]] = []
        self.moved = asyncio.Condition()
        self.cuts = 0

    # What the world does

    async def create(self, kind: Kind[Any], manifest: Plain) -> Object:
        given = {"spec": {"clusterIP": "10.96.0.7"}} if kind is resources.SERVICES else {}
        made = merge({"metadata": {"uid": uuid4().hex}, **given}, manifest)
        await self._put(kind, ChangeKind.ADDED, made)
        return kind.view(copy.deepcopy(made))

    async def change(self, kind: Kind[Any], name: str, changes: Plain) -> None:
        await self._put(kind, ChangeKind.MODIFIED, merge(self._find(kind, name), changes))

    async def scale(self, name: str, replicas: int) -> None:
        await self.change(REPLICA_SETS, name, {"spec": {"replicas": replicas}})

    async def remove(self, kind: Kind[Any], name: str) -> None:
        gone = self._objects[kind].pop(name)
        await self._record(kind, ChangeKind.DELETED, gone)

    async def cut_watches(self) -> None:
        """As an API server does after some minutes, or that is restarted."""
        self.cuts += 1
        async with self.moved:
            self.moved.notify_all()

    async def forget(self) -> None:
        """No watch can go on from a version before this one."""
        self.oldest = self.version
        await self.cut_watches()

    async def token(self, pod: str, audience: str) -> str:
        """Of that pod, as its kubelet gets one for it."""
        found = self._find(resources.PODS, pod)
        return self.issuer.sign(claims(pod, found["metadata"]["uid"], audience, NAMESPACE))

    async def go_away(self) -> None:
        self.away = True
        await self.cut_watches()

    # What is asked of it, as of ``kubernetes_asyncio.client.ApiClient``

    async def call_api(
        self, path: str, method: str, *, query_params: list[tuple[str, str]], body: Plain | None, **_: Any
    ) -> Answer:
        if path == "/openid/v1/jwks":
            return await self._key_set()
        if path.endswith("/selfsubjectaccessreviews"):
            assert body is not None
            return Answer(201, {"status": {"allowed": self._allows(body["spec"]["resourceAttributes"])}}, {})
        kind, name, part = parse(path)
        query = dict(query_params)
        verb = _VERBS.get(method) or ("get" if name else "watch" if "watch" in query else "list")
        self.calls[verb, kind] += 1
        try:
            return Answer(200, await self._answer(verb, kind, name, part, query, copy.deepcopy(body or {})), {})
        except Refused as error:
            said = {"kind": "Status", "message": error.message, "reason": error.reason, "code": error.status}
            return Answer(error.status, said, {})

    async def close(self) -> None:
        """There is nothing to close."""

    async def _key_set(self) -> Answer:
        self.keys_asked += 1
        await self.keys_held.wait()
        if self.away:
            raise aiohttp.ClientConnectionError("the API server is away")
        if self.keys_refused is None:
            return Answer(200, self.issuer.key_set(), {})
        words = {403: 'forbidden: User "launcher" cannot get path "/openid/v1/jwks"'}
        said = {"kind": "Status", "message": words.get(self.keys_refused, ""), "code": self.keys_refused}
        return Answer(self.keys_refused, said, {})

    def _allows(self, asked: Plain) -> bool:
        verb, plural, part = asked["verb"], asked["resource"], asked["subresource"]
        missing = f"{verb} {plural}/{part}".rstrip("/") in self.without
        return not missing and (verb, _KINDS[plural]) not in self.forbidden

    async def _answer(
        self, verb: str, kind: Kind[Any], name: str, part: str, query: dict[str, str], body: Plain
    ) -> Plain | Events:
        if self.away:
            raise aiohttp.ClientConnectionError("the API server is away")
        resource = f"{kind.plural}/{part}".rstrip("/")
        if (verb, kind) in self.forbidden or f"{verb} {resource}" in self.without:
            said = f'{kind.plural} is forbidden: User "launcher" cannot {verb} resource "{resource}"'
            raise Refused(403, said)
        match verb:
            case "watch":
                return Events(self, kind, query)
            case "list":
                found = [copy.deepcopy(each) for each in self._objects[kind].values() if selects(query, each)]
                return {"items": found, "metadata": {"resourceVersion": str(self.version)}}
            case "create":
                if (name := body["metadata"]["name"]) in self._objects[kind]:
                    raise Refused(409, f'{kind.plural} "{name}" already exists', "AlreadyExists")
                return dict((await self.create(kind, body)).raw)
        if part == "resize" and not self.resizes:
            raise Refused(404, "the server could not find the requested resource")
        return copy.deepcopy(await self._change_one(verb, kind, name, part, body))

    async def _change_one(self, verb: str, kind: Kind[Any], name: str, part: str, body: Plain) -> Plain:
        found = self._find(kind, name)
        conditions = body.get("preconditions" if verb == "delete" else "metadata") or {}
        for key in ("uid", "resourceVersion"):
            if conditions.get(key, found["metadata"][key]) != found["metadata"][key]:
                raise Refused(409, f"{name}: {key} {conditions[key]} wanted, {found['metadata'][key]} found")
        if verb == "delete":
            await self.remove(kind, name)
        elif verb == "patch" and (merged := merge(found, body)) != found:
            if kind is resources.PODS:
                check_pod(found["spec"], merged["spec"], part)
            await self._put(kind, ChangeKind.MODIFIED, merged)
            return merged
        return found

    def _find(self, kind: Kind[Any], name: str) -> Plain:
        if name not in self._objects[kind]:
            raise Refused(404, f'{kind.plural} "{name}" not found')
        return self._objects[kind][name]

    async def _put(self, kind: Kind[Any], change: ChangeKind, thing: Plain) -> None:
        self._objects[kind][thing["metadata"]["name"]] = thing
        await self._record(kind, change, thing)

    async def _record(self, kind: Kind[Any], change: ChangeKind, thing: Plain) -> None:
        self.version += 1
        thing["metadata"]["resourceVersion"] = str(self.version)
        self.history.append((self.version, kind, change, copy.deepcopy(thing)))
        async with self.moved:
            self.moved.notify_all()


class Events:
    """One watch."""

    def __init__(self, place: FakePlace, kind: Kind[Any], query: dict[str, str]) -> None:
        self._place, self._kind, self._query, self._cuts = place, kind, query, place.cuts
        self._version = int(query["resourceVersion"])
        self._over = False

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> bytes:
        if self._over:
            raise StopAsyncIteration
        if self._version < self._place.oldest:
            self._over = True
            return event("ERROR", {"code": 410, "message": f"too old resource version: {self._version}"})
        while True:
            for number, kind, change, thing in self._place.history:
                if number > self._version:
                    self._version = number
                    if kind == self._kind and selects(self._query, thing):
                        return event(change, thing)
            if self._cuts != self._place.cuts:
                raise StopAsyncIteration
            async with self._place.moved:
                if self._place.version == self._version and self._cuts == self._place.cuts:
                    await self._place.moved.wait()


def event(kind: str, thing: Plain) -> bytes:
    return json.dumps({"type": kind, "object": thing}).encode() + b"\n"


def check_pod(old: Plain, new: Plain, part: str) -> None:
    """Of a pod, containers change by its resize alone, in their resources alone, and not in the quality of service."""
    resized = part == "resize"
    if without_resources(old) != without_resources(new) or (not resized and old != new):
        raise Refused(422, "Pod is invalid: spec: Forbidden: pod updates may not change fields other than these")
    if guaranteed(old) != guaranteed(new):
        raise Refused(422, "Pod is invalid: Invalid value: Pod QoS Class may not change as a result of resizing")


def without_resources(spec: Plain) -> Plain:
    containers = [{**each, "resources": {}} for each in spec.get("containers", ())]
    return {**spec, "containers": containers}


def guaranteed(spec: Plain) -> bool:
    """The quality of service of a pod all of whose containers request their limits."""
    sides = [each.get("resources") or {} for each in spec.get("containers", ())]
    return all({"cpu", "memory"} <= {*each.get("limits", ())} and each["limits"] == each["requests"] for each in sides)


def parse(path: str) -> tuple[Kind[Any], str, str]:
    """Kind, name and part, which may be empty; scale and resize, the parts asked for, are kept in the object."""
    words = path.strip("/").split("/")
    words = words[2:] if words[0] == "api" else words[3:]
    if words[0] == "namespaces":
        assert words[1] == NAMESPACE
        words = words[2:]
    plural, name, part = (*words, "", "")[:3]
    return _KINDS[plural], name, part


def merge(target: Plain, changes: Plain) -> Plain:
    """A JSON merge patch, RFC 7386."""
    result = copy.deepcopy(target)
    for key, value in changes.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            old = result.get(key)
            result[key] = merge(old if isinstance(old, dict) else {}, value)
        else:
            result[key] = value
    return result


def selects(query: dict[str, str], thing: Plain) -> bool:
    """Equality of labels, and of fields given by their path."""
    wanted = dict(each.split("=", 1) for each in query.get("labelSelector", "").split(",") if each)
    labels = thing["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    for key, value in (each.split("=", 1) for each in query.get("fieldSelector", "").split(",") if each):
        found: Any = thing
        for part in key.split("."):
            found = found.get(part, {})
        if found != value:
            return False
    return True
