"""What the prompts of a class share: a system prompt, one of several group prefixes, the turns before in a session.

Knows how long the shared parts are and names their blocks by content ids; the tokens that those stand for, `contents`
makes. An id is a hash of names, not a count, so that one class's ids do not depend on another's.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random

from inflight.workload.lengths import Fixed, Lengths
from inflight.workload.workload import WorkloadError

_SINGLE = Fixed(1)
_SESSION_BLOCK = 16  # tokens, at most; less where shared prefixes do not end at such a border


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefixes:
    """system_tokens: that every prompt of the class begins with. groups: number of prefixes of group_tokens each, one
    of which follows it. skew: how unequally groups are drawn: group k with weight 1/k^skew (Zipf); 0: all alike.

    What prompts share comes before their own tokens, and counts beside them.
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
        """Of every prompt that are shared."""
        return self.system_tokens + self.group_tokens

    @property
    def block_size(self) -> int:
        """Tokens per content id: as many as go into all of the shared parts; 0 where there are none."""
        return math.gcd(self.system_tokens, self.group_tokens)

    def draw_group(self, rng: Random) -> int:
        return rng.choices(range(self.groups), cum_weights=self._sums)[0] if self.groups else 0

    def ids(self, owner: str, group: int, block_size: int) -> tuple[int, ...]:
        """Content ids of what a prompt of this group shares. owner: name of the class."""
        system, shared = self.system_tokens // block_size, self.group_tokens // block_size
        return (*_numbered(f"{owner}/system", 0, system), *_numbered(f"{owner}/group/{group}", 0, shared))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """Conversations. turns: how many requests one has. think_s: mean time between an answer's end and the next turn,
    exponentially distributed; 0: at once. added: new tokens of each turn after the first; None: as the first one's.
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
    """Tokens per content id of a session's prompts."""
    return math.gcd(_SESSION_BLOCK, shared.block_size)


def session_ids(session: str, shared: tuple[int, ...], prompt_tokens: int, block_size: int) -> tuple[int, ...]:
    """Content ids of a whole prompt of a session, the last one cut off by the prompt's end. All turns are beginnings of
    one stream, so that each begins with the one before, and with what stands for its answer."""
    return (*shared, *_numbered(session, len(shared), math.ceil(prompt_tokens / block_size)))


def _numbered(name: str, start: int, stop: int) -> range:
    first = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    return range(first + start, first + stop)
