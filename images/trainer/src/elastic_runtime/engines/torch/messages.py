"""Messages between a rank and its session, within :class:`~elastic_runtime.protocol.rank_link.EngineWord`.

A rank is *ready* for a next world, and told its place in it, or that it has none. It connects to the others by what it
finds in the world's store, and says that it is *connected*; once its state is rank 0's, that it is *synced*; at the end
of its training, that it is *done*, and is told when all are. In between the session tells that another world is wanted,
at the next commit, or that the present one is *broken*, at once; and a rank may say that, too. Where each rank
has a part of the state, and parts are *lost* with ranks, those that are left say so, and the session is over. A rank
that cannot leave a broken world says that it is *hung*.

Ranks act together at one commit without a collective at each: whoever has something that all must act upon *wants an
agreement*; the session has all *prepare* one, each answers at once with how many commits it has begun, begins no other,
and is told the commit at which all agree, the first that none of them has begun.

Worlds are counted by the session from 1. What is said of another world than the present one is late, and left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from elastic_runtime.errors import InvalidDocument
from elastic_runtime.protocol import messages

NAME = "ELASTIC_RUNTIME_RANK_ID"
"""Environment variable: the rank, as the launcher knows it."""
MOST_KEY, MOST_KEYS, MOST_VALUE = 500, 32768, 32768
"""Characters of a key of the store, of all keys of an ask (JSON), and of its value with what is expected (base64)."""
MOST_COMMITS = 2**63
"""Commits of one world."""


@dataclass(frozen=True, slots=True)
class ReadyForWorld:
    """Rank: I can be in another world, in none at present."""

    part: bool = False
    """I have a part of the state that I have given to nobody: have me in the next world, even if I am to leave."""


@dataclass(frozen=True, slots=True)
class Connected:
    """Rank: I am connected to all others of this world."""

    world: int


@dataclass(frozen=True, slots=True)
class Synced:
    """Rank: what rank 0 of this world had, I have."""

    world: int


@dataclass(frozen=True, slots=True)
class Static:
    """Rank: the script trains in this world without a state, so it can go to no other."""

    world: int


@dataclass(frozen=True, slots=True)
class Done:
    """Rank: my training in this world is over."""

    world: int


@dataclass(frozen=True, slots=True)
class PeerLost:
    """Rank: what I had to do with the others of this world has failed."""

    world: int


@dataclass(frozen=True, slots=True)
class StateLost:
    """Rank: the ranks of this world do not have all of the state, and no checkpoint has it."""

    world: int


@dataclass(frozen=True, slots=True)
class Hung:
    """Rank: this world is broken, and I cannot leave it: I stand where nothing will wake me."""

    world: int


@dataclass(frozen=True, slots=True)
class AgreementWanted:
    """Rank: have all agree, soon; I have heard something."""

    world: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """A rank's answer to :class:`Prepare`."""

    world: int
    serial: int
    begun: int
    """Commits (and looks for changes) in this world, so far."""


@dataclass(frozen=True, slots=True)
class StoreAsk:
    """Rank: do this in the store of the world. Answered by :class:`StoreAnswer`, ``get`` and ``wait`` when they can be.

    See ``torch.distributed.Store`` for what the operations do; ``give_up`` takes back what waits, and has no answer.
    """

    world: int
    serial: int
    """Serial of the answer. For ``give_up``, that of the ask that it withdraws, with the same keys."""
    operation: Literal["set", "get", "wait", "check", "add", "compare_set", "delete", "give_up"]
    keys: tuple[str, ...]
    """Keys: any number for ``wait`` and ``check``, else one."""
    value: str = ""
    """Base64, of ``set`` and ``compare_set``."""
    expected: str = ""
    """Base64, of ``compare_set``."""
    amount: int = 0
    """Amount of ``add``."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Rank: in this exchange of the world, I have one value for each of the others. Answered by :class:`Offered`."""

    world: int
    name: str
    number: int
    """Of this rank in the exchange, from 0."""
    values: tuple[str, ...]
    """Base64, by number of the rank that each is for, without this one's own."""


RankWord = (
    ReadyForWorld
    | Connected
    | Synced
    | Static
    | Done
    | PeerLost
    | StateLost
    | Hung
    | AgreementWanted
    | Prepared
    | StoreAsk
    | Offer
)


@dataclass(frozen=True, slots=True)
class EnterWorld:
    """Session: this is your place in the next world."""

    world: int
    rank: int
    size: int
    alike: int = 0
    """So many of its ranks, from 0 on, have left the world before at one commit, and have the same state already."""
    in_vain: int = 0
    """Worlds before it, one after another, that broke with all their ranks alive, and without a commit."""
    local_rank: int = 0
    """Number of the rank where it runs."""
    local_size: int = 1
    """Ranks of the world there."""

    @property
    def same_state(self) -> bool:
        """Whether all its ranks have the same state already."""
        return self.alike == self.size


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Session: you are in no world any more; end."""


@dataclass(frozen=True, slots=True)
class AnotherWanted:
    """Session: leave this world at your next commit, all together."""

    world: int
    serial: int
    """Grows over all worlds of the session."""
    leaving: tuple[int, ...] = ()
    """Its ranks that will be in no other, as far as is known."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Session: answer with :class:`Prepared`, and begin no commit until :class:`AgreeAt` has come."""

    world: int
    serial: int


@dataclass(frozen=True, slots=True)
class AgreeAt:
    """Session: all ranks of this world agree at this commit, which none of them has begun."""

    world: int
    serial: int
    commit: int


@dataclass(frozen=True, slots=True)
class WorldBroken:
    """Session: a rank of this world is lost, or it cannot be completed."""

    world: int


@dataclass(frozen=True, slots=True)
class AllDone:
    """Session: every rank of this world has said :class:`Done`."""

    world: int


@dataclass(frozen=True, slots=True)
class StoreAnswer:
    """The session's answer to :class:`StoreAsk`."""

    serial: int
    value: str = ""
    """Base64, of ``get`` and ``compare_set``."""
    number: int = 0
    """Sum for ``add``, and 1 or 0 for ``check`` and ``delete``."""


@dataclass(frozen=True, slots=True)
class Offered:
    """Session: what each of the others has for this rank in an exchange, by their numbers."""

    world: int
    name: str
    number: int
    values: tuple[str, ...]


SessionWord = EnterWorld | LeftOut | AnotherWanted | Prepare | AgreeAt | WorldBroken | AllDone | StoreAnswer | Offered

_OF_RANKS: messages.Vocabulary[RankWord] = messages.Vocabulary(RankWord)
_OF_SESSIONS: messages.Vocabulary[SessionWord] = messages.Vocabulary(SessionWord)


def write_rank_word(word: RankWord) -> dict[str, Any]:
    """To be put into a message."""
    return _OF_RANKS.plain(word)


def write_session_word(word: SessionWord) -> dict[str, Any]:
    """To be put into a message."""
    return _OF_SESSIONS.plain(word)


def read_rank_word(plain: Mapping[str, Any]) -> RankWord:
    """Raises InvalidDocument for anything else, or for what is too large."""
    word = _OF_RANKS.read(plain)
    if word is None:
        raise InvalidDocument(f"no word of a rank is of type {plain.get('type')!r}")
    if isinstance(word, StoreAsk):
        _check(word)
    if isinstance(word, Prepared) and not 0 <= word.begun < MOST_COMMITS:
        raise InvalidDocument("what a rank has begun is not a possible number of commits")
    return word


def read_session_word(plain: Mapping[str, Any]) -> SessionWord | None:
    """None for a type that is not in it. Raises InvalidDocument."""
    return _OF_SESSIONS.read(plain)


def _check(ask: StoreAsk) -> None:
    several = ask.operation in ("wait", "check", "give_up")
    if not ask.keys or (len(ask.keys) > 1 and not several):
        raise InvalidDocument(f"{len(ask.keys)} keys of the store are not what {ask.operation} takes")
    if too_much := excess(ask.keys, ask.value, ask.expected):
        raise InvalidDocument(too_much)


def excess(keys: Sequence[str], value: str = "", expected: str = "") -> str:
    """Return the limit of the store that an ask exceeds, in words. Empty: none. An agent can read any such line."""
    if any(len(key) > MOST_KEY for key in keys):
        return f"a key of the store has more than {MOST_KEY} characters"
    if len(json.dumps(keys)) > MOST_KEYS:
        return f"keys of the store that are asked for together have more than {MOST_KEYS} characters"
    if len(value) + len(expected) > MOST_VALUE:
        return f"a value of the store, with what is expected there, has more than {MOST_VALUE // 4 * 3} bytes"
    return ""
