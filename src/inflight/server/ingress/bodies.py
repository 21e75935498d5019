"""Bodies of requests: bounded in size and time, inflated where they are compressed, and counted in one budget.

The application is called when the body is here, and gets it in one piece. Files are the exception: they go to the disk
as they come, and have a limit of their own.

Bytes count when they have come, not when they are announced, until the last user of the body releases them. Before it
is read, a body reserves its length in a share of its owner (a tenant, or an address where there are no keys); where the
share is used it waits, and its connection is not read. So an owner's bodies never wait for each other half-read, and a
slow one delays those of its owner alone. Small bodies have shares of their own, and room beside large ones.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import Iterator
from weakref import WeakValueDictionary

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inflight.counted import shortened
from inflight.server.asgi import closing, has_body, header, refuse, state_of
from inflight.server.errors import ApiError, invalid
from inflight.server.ingress.addresses import address_key
from inflight.server.tenants import Tenant

UPLOADS = "/v1/files"
INFLATED_BYTES = 1 << 18  # that one step inflates: a fraction of a millisecond
_WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # as zlib names its formats
SMALL_BYTES = 1 << 16
SMALL_ROOM_BYTES = 4 << 20  # for small bodies, beyond the budget
PATIENCE = 2.0  # seconds that a body waits for room in the budget while no other body is released
MAX_WAITING, MAX_WAITING_OF_ONE = 256, 128  # bodies; each has up to 192 KiB in memory that do not count yet


class BodyLease:
    """The bytes of one body."""

    def __init__(self, budget: BodyBudget, owner: str):
        self._budget, self.owner = budget, owner
        self.held = self.reserved = 0
        self.is_large = self.is_unknown = False

    async def reserve(self, size: int | None) -> None:
        """Wait until the owner's share has room for the body. Raises ApiError 503 where too many wait already.

        Args:
            size: Bytes of the body. None: unknown, so that it is small until it has grown.
        """
        self.is_unknown = size is None
        await self._budget.reserve(self, self._budget.small if size is None else size)

    async def grow(self, size: int) -> None:
        """Hold `size` bytes more. Raises ApiError 503 where there is no room, and none becomes free for a while."""
        await self._budget.hold(self, size)

    def complete(self) -> None:
        """Give back what was reserved beyond the bytes that are held: the body has been read."""
        self._budget.free(self, 0, self.reserved - self.held)

    def release(self) -> None:
        """Give back everything; the first call counts."""
        self._budget.free(self, self.held, self.reserved)


class BodyBudget:
    def __init__(self, most: int, share: int, longest: int, patience: float = PATIENCE, small: int = SMALL_BYTES):
        """Create an empty budget.

        Args:
            most: Bytes of all bodies.
            share: Bytes of one owner's large bodies, and of its small ones.
            longest: Bytes of one body, at most `share`.
            patience: Seconds that a body waits for room while no other is released.
            small: Bytes of a small body.
        """
        self.longest, self.small = longest, min(small, longest)
        self._most, self._share, self._patience = most, share, patience
        self.held = 0
        self._reserved: Counter[tuple[str, bool]] = Counter()
        self._locks: WeakValueDictionary[tuple[str, bool], asyncio.Lock] = WeakValueDictionary()
        self._waiting: Counter[str] = Counter()
        self._freed = asyncio.Event()  # a new one each time

    def lease(self, owner: str) -> BodyLease:
        return BodyLease(self, owner)

    async def reserve(self, lease: BodyLease, size: int) -> None:
        key = lease.owner, size > self.small
        lock = self._locks.setdefault(key, asyncio.Lock())  # one waits for room, the others for it
        if not lock.locked() and self._reserved[key] + size <= self._share:
            return self._take(lease, key, size)
        if self._waiting[lease.owner] >= MAX_WAITING_OF_ONE or self._waiting.total() >= MAX_WAITING:
            raise self._refusal(
                f"Too many bodies wait for memory: {self._waiting[lease.owner]} of yours, at most "
                f"{MAX_WAITING_OF_ONE}; {self._waiting.total()} in all, at most {MAX_WAITING}"
            )
        self._waiting[lease.owner] += 1
        try:
            async with lock:
                while self._reserved[key] + size > self._share:
                    await self._freed.wait()
                self._take(lease, key, size)
        finally:
            self._waiting[lease.owner] -= 1
            self._waiting += Counter()  # forget owners without

    def _take(self, lease: BodyLease, key: tuple[str, bool], size: int) -> None:
        before = lease.reserved  # as a small body, where this one has grown
        self._reserved[key] += size
        self._free_share(lease, before)
        lease.reserved, lease.is_large = size, key[1]

    async def hold(self, lease: BodyLease, size: int) -> None:
        if lease.held + size > lease.reserved and not lease.is_large:
            # A large one that waited for more of the share would hold what others wait for.
            await self.reserve(lease, self.longest if lease.is_unknown else lease.held + size)
        most = self._most + (0 if lease.is_large else SMALL_ROOM_BYTES)
        while self.held + size > most:
            try:
                async with asyncio.timeout(self._patience):
                    await self._freed.wait()
            except TimeoutError:
                raise self._refusal(
                    f"Bodies in memory have {self.held:,} bytes, and the maximum is {self._most:,} (--body-budget-mb)"
                ) from None
        self.held += size
        lease.held += size

    def free(self, lease: BodyLease, held: int, reserved: int) -> None:
        """Give back bytes of the budget and of the owner's share."""
        self.held -= held
        lease.held -= held
        self._free_share(lease, max(0, reserved))
        self._freed.set()
        self._freed = asyncio.Event()

    def _free_share(self, lease: BodyLease, size: int) -> None:
        key = lease.owner, lease.is_large
        lease.reserved -= size
        self._reserved[key] -= size
        if not self._reserved[key]:
            del self._reserved[key]

    def _refusal(self, why: str) -> ApiError:
        return ApiError(
            503,
            f"{why}; try again in {self._patience:g} s, with fewer at once.",
            type="server_error",
            code="body_budget",
            retry_after=self._patience,
        )


class _Gone(Exception):
    """The client went away before its body was here."""


class BodyLimits:
    """Puts the body's lease into the request's state as `body_lease`: who has used the body may release it early; what
    is left is released when the request ends."""

    def __init__(self, app: ASGIApp, budget: BodyBudget, seconds: float, upload_seconds: float):
        """Wrap `app`.

        Args:
            app: The application behind the limits.
            budget: Of all bodies in memory.
            seconds: In which a body must come.
            upload_seconds: In which an uploaded file must come.
        """
        self._app, self._budget = app, budget
        self._seconds, self._upload_seconds = seconds, upload_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        lease = state_of(scope)["body_lease"] = self._budget.lease(_owner(scope))
        if not has_body(scope):
            return await self._app(scope, receive, send)
        if scope["method"] == "POST" and scope["path"].rstrip("/") == UPLOADS:
            return await self._upload(scope, receive, send)
        try:
            try:
                parts = [await self._read(scope, _Deadline(self._seconds, "--body-timeout", receive), lease)]
            except ApiError as error:
                return await refuse(error, scope, receive, send)
            except _Gone:
                return

            async def once() -> Message:
                if parts:
                    return {"type": "http.request", "body": parts.pop(), "more_body": False}
                return await receive()

            await self._app(scope, once, send)
        finally:
            lease.release()

    async def _read(self, scope: Scope, receive: _Deadline, lease: BodyLease) -> bytes:
        announced, inflater = header(scope, b"content-length"), _inflater_for(scope)
        if announced is not None and int(announced) > self._budget.longest:
            raise self._too_large(int(announced))
        await lease.reserve(None if announced is None or inflater is not None else int(announced))
        body, compressed, is_last = bytearray(), 0, False
        try:
            while not is_last:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _Gone
                piece, is_last = message.get("body", b""), not message.get("more_body", False)
                compressed += len(piece)
                if compressed > self._budget.longest:  # which may inflate to nothing
                    raise self._too_large(compressed)
                for one in (piece,) if inflater is None else inflater.inflate(piece):
                    if len(body) + len(one) > self._budget.longest:
                        raise self._too_large(len(body) + len(one))
                    await lease.grow(len(one))
                    body += one
                    if inflater is not None:
                        await asyncio.sleep(0)
            if inflater is not None:
                inflater.check_ended()
            lease.complete()
            return bytes(body)
        finally:
            body.clear()  # an error's traceback would keep it

    async def _upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a file through, piece by piece; an answer before the last one ends the connection."""
        if header(scope, b"content-encoding") not in (None, b"identity"):
            sentence = "Uploads do not support Content-Encoding; leave the header out, and send the file uncompressed."
            error = ApiError(415, sentence, code="unsupported_encoding", accepts="identity")
            return await refuse(error, scope, receive, send)
        deadline, ended = _Deadline(self._upload_seconds, "--upload-timeout", receive), False

        async def piece() -> Message:
            nonlocal ended
            message = await (receive() if ended else deadline())
            ended = ended or not message.get("more_body", False)
            return message

        await self._app(scope, piece, closing(receive, send, lambda: ended))

    def _too_large(self, size: int) -> ApiError:
        most = self._budget.longest
        sentence = f"The body has at least {size:,} bytes, and the maximum is {most:,} (--max-body-mb); send less."
        return ApiError(413, sentence, code="body_too_large")


class _Deadline:
    """Receives a body within a time, of which only what was spent waiting for the client counts."""

    def __init__(self, seconds: float, option: str, receive: Receive):
        self._seconds, self._left, self._option, self._receive = seconds, seconds, option, receive

    async def __call__(self) -> Message:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(self._left):
                message = await self._receive()
        except TimeoutError:
            sentence = (
                f"The body did not arrive within {self._seconds:g} s ({self._option}); send a smaller one, or faster."
            )
            raise ApiError(408, sentence, code="body_timeout") from None
        self._left = max(0.0, self._left - (loop.time() - began))
        return message


class Inflater:
    """Inflates one body, no more at a time than is asked for."""

    def __init__(self, encoding: str):
        self._encoding = encoding
        self._library = zlib.decompressobj(_WINDOWS[encoding])
        self._begun = False

    def inflate(self, piece: bytes) -> Iterator[bytes]:
        """Yield what a piece of the compressed body holds, at most INFLATED_BYTES at a time. Raises ApiError 400."""
        while piece:
            if self._library.eof:  # files of gzip may be several, one behind the other
                self._library = zlib.decompressobj(_WINDOWS[self._encoding])
            try:
                inflated = self._library.decompress(piece, INFLATED_BYTES)
            except zlib.error as error:
                raise self._damaged(str(error).rpartition(": ")[2]) from None
            self._begun = True
            piece = self._library.unused_data if self._library.eof else self._library.unconsumed_tail
            if inflated:
                yield inflated

    def check_ended(self) -> None:
        """Raises ApiError 400 where the body is cut off."""
        if not (self._begun and self._library.eof):
            raise self._damaged("it is cut off")

    def _damaged(self, why: str) -> ApiError:
        sentence = f"The body cannot be decompressed as {self._encoding} ({why}); compress it as Content-Encoding says."
        return invalid(sentence, code="invalid_encoding")


def _inflater_for(scope: Scope) -> Inflater | None:
    """Return what inflates the request's body; None where it is not compressed. Raises ApiError 415."""
    encoding = (header(scope, b"content-encoding") or b"").decode("latin-1").strip().lower()
    if encoding in ("", "identity"):
        return None
    if encoding not in _WINDOWS:
        given = shortened(encoding)
        sentence = f"Content-Encoding {given!r} is not supported; send gzip, deflate or no compression."
        raise ApiError(415, sentence, code="unsupported_encoding", accepts="gzip, deflate")
    return Inflater(encoding)


def _owner(scope: Scope) -> str:
    tenant, client = state_of(scope).get("tenant"), scope.get("client")
    if isinstance(tenant, Tenant) and tenant.name:
        return f"tenant {tenant.name}"
    return address_key(client[0] if client else "")
