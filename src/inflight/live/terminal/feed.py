"""Read a server's live feed (server-sent events), and connect again when it breaks."""

from __future__ import annotations

import http.client
import json
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator

from inflight.counted import cause_of
from inflight.live.frames import FrameError, Message, decode

SILENT_SECONDS = 6.0  # without a byte, after which the server counts as lost
PAUSE_SECONDS = 1.0
MAX_LINE_BYTES = 8 << 20


class FeedError(ValueError):
    """The feed cannot be read at all; the sentence says why."""


class FeedReader:
    def __init__(self, url: str, key: str | None):
        """Prepare it. key: an API key. Raises FeedError for what is no address."""
        parts = urllib.parse.urlsplit(url if "//" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise FeedError(f"{url!r} is no address of a server; give one such as http://127.0.0.1:8000.")
        self.url = url
        self._parts, self._port, self._key = parts, port, key
        self._last: str | None = None

    def messages(self, wait: bool) -> Iterator[Message | str]:
        """Yield messages, and sentences while there are none. wait: also for a server that does not answer. Raises
        FeedError where trying again is useless."""
        while True:
            try:
                yield from self._once()
                why = "the server has ended the feed"
            except (OSError, http.client.HTTPException) as error:
                why = cause_of(error)
            sentence = f"Nothing comes from {self.url} ({why})"
            if not wait:
                raise FeedError(f"{sentence}; start it with `inflight serve`, or give its address.")
            yield f"{sentence}; trying again."
            time.sleep(PAUSE_SECONDS)

    def follow(self, take: Callable[[Message | str], None]) -> None:
        """Read in a thread that ends with the program; the last item is the error where trying again is useless."""

        def run() -> None:
            try:
                for one in self.messages(wait=True):
                    take(one)
            except (FeedError, FrameError) as error:
                take(str(error))

        threading.Thread(target=run, name="inflight-feed", daemon=True).start()

    def _once(self) -> Iterator[Message]:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._parts.hostname or "", self._port, timeout=SILENT_SECONDS)
        headers = {"Accept": "text/event-stream"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        if self._last:
            headers["Last-Event-ID"] = self._last
        try:
            connection.request("GET", self._parts.path.rstrip("/") + "/live/events", headers=headers)
            answer = connection.getresponse()
            if answer.status != 200:
                self._refused(answer.status, answer.read(1 << 16))
            while line := answer.readline(MAX_LINE_BYTES + 1):
                if len(line) > MAX_LINE_BYTES:
                    raise http.client.HTTPException(f"a line of its feed has more than {MAX_LINE_BYTES:,} bytes")
                if line.startswith(b"id: "):
                    self._last = line[4:].strip().decode("ascii", "replace")
                elif line.startswith(b"data: "):
                    yield decode(line[6:])
        finally:
            connection.close()

    def _refused(self, status: int, body: bytes) -> None:
        """Raise FeedError, or OSError where trying again may help."""
        try:
            why = str(json.loads(body)["error"]["message"])
        except (ValueError, KeyError, TypeError):
            why = f"it answers {status}"
        if status in (429, 503):
            raise OSError(why)
        if status == 404:
            why = "it has no live feed; it was started with --no-ui, or is no inflight server"
        raise FeedError(f"The server at {self.url} sends no live feed: {why}")
