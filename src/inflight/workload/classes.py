"""Classes of traffic: their share, lengths, shared prefixes, conversations and targets; from Python or a TOML file.

    [classes.chat]
    share = 0.8
    input = "lognormal:200:2000"
    output = "lognormal:100:800:1000"
    ttft_ms = 500
    prefix = { system_tokens = 512 }

Shared parts of prompts are named by content ids, which stand for the same tokens (`contents`) in every prompt. An id is
a hash of names, not a count, so that one class's ids do not depend on another's.
"""

from __future__ import annotations

import hashlib
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

from inflight.metrics.observation import Targets
from inflight.workload.arrivals import Arrivals, AtOnce, parse_arrivals
from inflight.workload.lengths import Fixed, Lengths, parse_lengths
from inflight.workload.workload import NO_TARGETS, WorkloadError

_SINGLE = Fixed(1)
_SESSION_BLOCK = 16  # tokens, at most; less where shared prefixes do not end at such a border


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefixes:
    """Prefixes that the prompts of a class share; they come before a prompt's own tokens, and are counted beside them.

    Attributes:
        system_tokens: at the beginning of every prompt of the class.
        groups: number of prefixes of group_tokens each, one of which follows.
        skew: how unequally groups are drawn: group k with weight 1/k^skew (Zipf); 0: all alike.
    """

    system_tokens: int = 0
    groups: int = 0
    group_tokens: int = 0
    skew: float = 0.0
    _sums: list[float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("system_tokens", "groups", "group_tokens"):
            if getattr(self, name) < 0:
                raise WorkloadError(f"{name} of a prefix is {getattr(self, name)}; give a whole number from 0.")
        if (self.groups > 0) != (self.group_tokens > 0):
            raise WorkloadError(
                f"A prefix has {self.groups} groups of {self.group_tokens} tokens; give groups and group_tokens both, "
                "or neither."
            )
        if not 0 <= self.skew <= 100:
            raise WorkloadError(f"The skew of prefix groups is {self.skew:g}; give a number from 0 to 100.")
        object.__setattr__(self, "_sums", list(accumulate(k**-self.skew for k in range(1, self.groups + 1))))

    @property
    def tokens(self) -> int:
        """Shared tokens of every prompt."""
        return self.system_tokens + self.group_tokens

    @property
    def block_size(self) -> int:
        """Tokens per content id: the largest number that divides all shared parts; 0 where there are none."""
        return math.gcd(self.system_tokens, self.group_tokens)

    def draw_group(self, rng: Random) -> int:
        return rng.choices(range(self.groups), cum_weights=self._sums)[0] if self.groups else 0

    def ids(self, owner: str, group: int, block_size: int) -> tuple[int, ...]:
        """Return the content ids of the shared parts of a group's prompts. owner: name of the class."""
        system, shared = self.system_tokens // block_size, self.group_tokens // block_size
        return (*_numbered(f"{owner}/system", 0, system), *_numbered(f"{owner}/group/{group}", 0, shared))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """Conversations.

    Attributes:
        turns: requests of one conversation.
        think_s: mean time between an answer's end and the next turn, exponentially distributed; 0: at once.
        added: new tokens of each turn after the first; None: as of the first.
    """

    turns: Lengths = _SINGLE
    think_s: float = 0.0
    added: Lengths | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.think_s < math.inf:
            raise WorkloadError(f"think_s of a session is {self.think_s:g}; give seconds from 0.")

    @property
    def several(self) -> bool:
        """Whether a conversation may have more than one turn."""
        return self.turns != _SINGLE

    def draw_think(self, rng: Random) -> float:
        return rng.expovariate(1 / self.think_s) if self.think_s else 0.0


def session_block_size(shared: SharedPrefixes) -> int:
    """Return the tokens per content id of a session's prompts."""
    return math.gcd(_SESSION_BLOCK, shared.block_size)


def session_ids(session: str, shared: tuple[int, ...], prompt_tokens: int, block_size: int) -> tuple[int, ...]:
    """Return the content ids of a session's whole prompt; the prompt's end cuts the last one off. All turns are
    beginnings of one stream, so that each begins with the one before and the made-up answer to it."""
    return (*shared, *_numbered(session, len(shared), math.ceil(prompt_tokens / block_size)))


def _numbered(name: str, start: int, stop: int) -> range:
    first = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    return range(first + start, first + stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficClass:
    """A class of traffic.

    Attributes:
        input: new tokens of a prompt, to which shared prefixes and the conversation so far are added.
        output: tokens of an answer.
        share: its part of the mixture's arrivals, relative to the other classes' shares.
        arrivals: its own, in addition to the mixture's, instead of a share. With sessions, each arrival begins one.
        max_tokens: the request's limit; None: the output's length.
    """

    name: str
    input: Lengths
    output: Lengths
    share: float | None = None
    arrivals: Arrivals | None = None
    max_tokens: int | None = None
    lane: str = ""
    tenant: str = ""
    priority: int | None = None
    targets: Targets = NO_TARGETS
    prefix: SharedPrefixes = field(default_factory=SharedPrefixes)
    sessions: Sessions = field(default_factory=Sessions)

    def __post_init__(self) -> None:
        if (self.share is None) == (self.arrivals is None):
            raise WorkloadError(
                f"Class {self.name!r} has the share {self.share} and the arrivals {self.arrivals}; give one of them."
            )
        if self.share is not None and not 0 < self.share < math.inf:
            raise WorkloadError(f"Class {self.name!r} has the share {self.share:g}; give a number above 0.")
        if isinstance(self.arrivals, AtOnce):
            raise WorkloadError(
                f"Class {self.name!r} comes at once, without end; give it a share, or arrivals of a rate."
            )
        if self.max_tokens is not None and self.max_tokens < 1:
            raise WorkloadError(f"Class {self.name!r} has max_tokens {self.max_tokens}; give a whole number from 1.")

    def __str__(self) -> str:
        part = f"share {self.share:g}" if self.arrivals is None else str(self.arrivals)
        shared = f"{self.prefix.tokens} shared + " if self.prefix.tokens else ""
        turns = f", turns {self.sessions.turns}" if self.sessions.several else ""
        return f"{self.name or 'requests'} ({part}, in {shared}{self.input}, out {self.output}{turns})"


def read_classes(path: Path) -> tuple[TrafficClass, ...]:
    """Read the classes of a TOML file, a table `[classes.NAME]` each. Raises WorkloadError, also for unknown keys."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise WorkloadError(f"The file of classes {path} cannot be read: {error}.") from None
    return parse_classes(tables, str(path))


def parse_classes(tables: Mapping[str, Any], source: str) -> tuple[TrafficClass, ...]:
    """Read classes from parsed TOML. source: its name in errors."""
    _known(tables, ("classes",), source)
    classes = tables.get("classes")
    if not isinstance(classes, Mapping) or not classes:
        raise WorkloadError(f"{source} has no class of traffic; give one table [classes.NAME] at least.")
    return tuple(_class(name, table, f"{source}, [classes.{name}]") for name, table in classes.items())


_TARGETS = ("ttft_ms", "tpot_ms", "itl_ms", "itl_max_ms", "e2e_ms")
_KEYS = (
    "share", "arrivals", "input", "output", "max_tokens", "lane", "tenant", "priority", *_TARGETS, "prefix", "sessions"
)  # fmt: skip


def _class(name: str, table: Any, where: str) -> TrafficClass:
    _known(table, _KEYS, where)
    for key in ("input", "output"):
        if key not in table:
            raise WorkloadError(f"{where} says no {key} lengths; give {key}, for example {key} = 128.")
    return _made(
        where,
        lambda: TrafficClass(
            name=name,
            share=_number(table, "share", where),
            arrivals=parse_arrivals(_text(table, "arrivals", where)) if "arrivals" in table else None,
            input=_lengths(table, "input", where),
            output=_lengths(table, "output", where),
            max_tokens=_whole(table, "max_tokens", where),
            lane=_text(table, "lane", where),
            tenant=_text(table, "tenant", where),
            priority=_whole(table, "priority", where),
            targets=_targets(table, where),
            prefix=_prefix(table.get("prefix", {}), f"{where}, prefix"),
            sessions=_sessions(table.get("sessions", {}), f"{where}, sessions"),
        ),
    )


def _targets(table: Mapping[str, Any], where: str) -> Targets:
    limits = {}
    for key in _TARGETS:
        milliseconds = _number(table, key, where)
        if milliseconds is not None:
            if not 0 < milliseconds < math.inf:
                raise WorkloadError(f"{key} is {milliseconds:g}; give milliseconds above 0.")
            limits[key.removesuffix("_ms")] = milliseconds / 1000
    return Targets(**limits)


def _prefix(table: Any, where: str) -> SharedPrefixes:
    _known(table, ("system_tokens", "groups", "group_tokens", "skew"), where)
    return SharedPrefixes(
        system_tokens=_whole(table, "system_tokens", where) or 0,
        groups=_whole(table, "groups", where) or 0,
        group_tokens=_whole(table, "group_tokens", where) or 0,
        skew=_number(table, "skew", where) or 0.0,
    )


def _sessions(table: Any, where: str) -> Sessions:
    _known(table, ("turns", "think_s", "added"), where)
    return Sessions(
        turns=_lengths(table, "turns", where) if "turns" in table else Sessions().turns,
        think_s=_number(table, "think_s", where) or 0.0,
        added=_lengths(table, "added", where) if "added" in table else None,
    )


def _made(where: str, make: Callable[[], TrafficClass]) -> TrafficClass:
    """Prefix errors of arrivals, lengths and limits with the class that they are in."""
    try:
        return make()
    except WorkloadError as error:
        message = str(error)
        raise WorkloadError(message if message.startswith(where) else f"{where}: {message}") from None


def _known(table: Any, keys: tuple[str, ...], where: str) -> None:
    if not isinstance(table, Mapping):
        raise WorkloadError(f"{where} is {table!r}; give a table with {', '.join(keys)}.")
    unknown = [key for key in table if key not in keys]
    if unknown:
        raise WorkloadError(f"{where} has the unknown key {unknown[0]!r}; known are {', '.join(keys)}.")


def _number(table: Mapping[str, Any], key: str, where: str) -> float | None:
    value = table.get(key)
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    raise WorkloadError(f"{where} has {key} = {value!r}; give a number.")


def _whole(table: Mapping[str, Any], key: str, where: str) -> int | None:
    value = table.get(key)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise WorkloadError(f"{where} has {key} = {value!r}; give a whole number.")


def _text(table: Mapping[str, Any], key: str, where: str) -> str:
    value = table.get(key, "")
    if isinstance(value, str):
        return value
    raise WorkloadError(f"{where} has {key} = {value!r}; give text in quotes.")


def _lengths(table: Mapping[str, Any], key: str, where: str) -> Lengths:
    value = table[key]
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise WorkloadError(f"{where} has {key} = {value!r}; give a whole number, or a form of lengths in quotes.")
    return parse_lengths(value)
