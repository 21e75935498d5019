"""Lines of a record for what changes a scheduler between its steps, beside requests that come and go.

Each stands between the plans and commits that it names, in the order of the commands' numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Struct

from inflight.core.types.plan import Transferred
from inflight.counted import Amount, Count, Time


class TransfersRecord(Struct, frozen=True, tag_field="kind", tag="transfers"):
    """Transfers that ended while nothing could be computed without them.

    Attributes:
        transferred: Their ends.
        ended: When.
        before_step: First step planned after that.
        before_commit: First step committed after that.
        command: Number among all commands.
    """

    transferred: Annotated[tuple[Transferred, ...], msgspec.Meta(min_length=1)]
    ended: Time
    before_step: Count
    before_commit: Count
    command: Count


class ServiceRecord(Struct, frozen=True, tag_field="kind", tag="service"):
    """Service that other engines gave to tenants.

    Attributes:
        elsewhere: Lane → tenant → weighted tokens.
        received: When this engine received it.
        before_step: First step planned after that.
        before_commit: First step committed after that.
        command: Number among all commands.
    """

    elsewhere: Mapping[str, Mapping[str, Amount]]
    received: Time
    before_step: Count
    before_commit: Count
    command: Count


class CacheResetRecord(Struct, frozen=True, tag_field="kind", tag="cache_reset"):
    """A reset of the prefix cache: all cached content of the device and the host was dropped, while there was no work.

    Attributes:
        dropped: When.
        before_step: First step planned after that.
        before_commit: First step committed after that.
        command: Number among all commands.
    """

    dropped: Time
    before_step: Count
    before_commit: Count
    command: Count


class AttemptsRecord(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="attempts"):
    """Attempts at a plan in a row that yielded none, though there was work: each may have begun transfers, or had
    requests wait.

    Attributes:
        attempted: When.
        before_step: First step planned after that.
        before_commit: First step committed after that.
        command: Number among all commands.
        within: Number of the suspended step, of attempts at an interim step.
    """

    attempted: Annotated[tuple[Time, ...], msgspec.Meta(min_length=1)]
    before_step: Count
    before_commit: Count
    command: Count
    within: Count | None = None


class RecoveryRecord(Struct, frozen=True, tag_field="kind", tag="recovery"):
    """A reset of the scheduler, which ended all requests, after one of its methods was interrupted.

    Attributes:
        recovered: When.
        error: The sentence that the requests ended with.
        before_step: First step planned after that.
        before_commit: First step committed after that.
        command: Number among all commands.
        next_step: Number of the next step.
        next_sequence: Number of the next sequence.
    """

    recovered: Time
    error: str
    before_step: Count
    before_commit: Count
    command: Count
    next_step: Count
    next_sequence: Count
