"""Messages between the server and its preprocessing processes: frames of msgpack, each side checking types.

No message can name code: a process that a hostile template has taken over can send wrong token ids, and no more.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from msgspec import Struct

from inflight.limited_process import LENGTH_BYTES
from inflight.server.call import EndpointName
from inflight.server.common.prepared import Limits, PreparedAnswer, PreparedChat, PreparedCompletion, PreparedTexts
from inflight.server.errors import ApiError
from inflight.server.registry import ENDPOINTS

Body = bytes | memoryview
NAMES = tuple(ENDPOINTS)
READY = b"ready"  # the first process has loaded what it needs
PID_BYTES = 4  # of a child's process id, with which the first process answers a socket
KEEP, RENEW = b"k", b"r"  # before an answer: whether the child that gave it goes on
SHORT, LONG = b"s", b"l"  # with a socket: what the child will read
# That a process may take for a short body, beyond what it has; the limits have that for a long one.
SHORT_MEMORY_BYTES = 16 << 20


def memory_of_body(limits: Limits, is_long: bool) -> int:
    """Return the bytes that a process may take for one body, beyond what it has."""
    return limits.memory_bytes if is_long else min(SHORT_MEMORY_BYTES, limits.memory_bytes)


def out_of_memory(max_bytes: int) -> ApiError:
    return ApiError(
        400,
        f"The body needs more memory to be read than the {max_bytes:,} bytes that one may take; send less in one "
        "body, or a shorter conversation.",
        code="body_too_complex",
    )


class Setup(Struct, frozen=True):
    """The settings of a process: the model's folder, and the seconds that it may compute for one body."""

    model_folder: str
    cpu_seconds: float


class Job(NamedTuple):
    """A body as it came. history: where answers are stored, the items that come before it, as JSON."""

    endpoint: EndpointName
    body: memoryview
    history: memoryview


def job_frame(endpoint: EndpointName, body: bytes, history: bytes) -> tuple[bytes, bytes, bytes]:
    """A byte that says which endpoint, the length of the history, the history, and the body; in pieces, none of which
    is copied."""
    length = 1 + LENGTH_BYTES + len(history) + len(body)
    head = bytes([NAMES.index(endpoint)]) + len(history).to_bytes(LENGTH_BYTES, "big")
    return length.to_bytes(LENGTH_BYTES, "big") + head, history, body


def job_of(frame: bytearray) -> Job:
    """Without the length that stood before it."""
    begin = 1 + LENGTH_BYTES
    end = begin + int.from_bytes(frame[1:begin], "big")
    view = memoryview(frame)
    return Job(NAMES[frame[0]], view[end:], view[begin:end])


class Refused(Struct, frozen=True, tag_field="outcome", tag="refused"):
    """An ApiError on its way between processes."""

    status: int
    message: str
    type: str
    param: str | None
    code: str | None

    @classmethod
    def of(cls, error: ApiError) -> Refused:
        return cls(error.status, error.message, error.type, error.param, error.code)

    def error(self) -> ApiError:
        return ApiError(self.status, self.message, type=self.type, param=self.param, code=self.code)


Outcome = PreparedCompletion | PreparedChat | PreparedTexts | PreparedAnswer | Refused

encode = msgspec.msgpack.Encoder().encode
decode_limits = msgspec.msgpack.Decoder(Limits).decode
decode_setup = msgspec.msgpack.Decoder(Setup).decode
decode_outcome = msgspec.msgpack.Decoder(Outcome).decode
