"""Parse server-sent events from bytes in pieces of any size, by the WHATWG's "Server-sent events"; sans-IO."""

from __future__ import annotations

_FIELDS = (b"event", b"id", b"retry")
MAX_EVENT_BYTES = 1 << 20  # of a line, and of all lines of an event


class EventStream:
    """stray: the first line that belongs to no event stream. is_too_long: an event exceeds MAX_EVENT_BYTES, and the
    rest of the stream is dropped."""

    def __init__(self) -> None:
        self._rest = b""  # the beginning of a line
        self._data: list[bytes] = []  # of the event that has begun
        self._data_bytes = 0
        self.stray: bytes | None = None
        self.is_too_long = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of each event that the bytes complete."""
        if self.is_too_long:
            return []
        if self._rest:
            data = self._rest + data
        held = b""
        if b"\r" in data:
            if data.endswith(b"\r"):  # perhaps half of a line's end
                data, held = data[:-1], b"\r"
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = data.split(b"\n")
        self._rest = rest + held
        events = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
                self._data_bytes += len(line)
            elif line:
                self._note(line)
            elif self._data:
                events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                self._data, self._data_bytes = [], 0
        if len(self._rest) + self._data_bytes > MAX_EVENT_BYTES:
            if not self._rest.startswith(b"data:"):
                self._note(self._rest)
            self.is_too_long, self._rest, self._data = True, b"", []
        return events

    def close(self) -> list[bytes]:
        """Return the last event, where the stream ended without the empty line after it. The specification drops it,
        but some servers end with their last frame."""
        return self.feed(b"\n\n") if self._rest or self._data else []

    def _note(self, line: bytes) -> None:
        if self.stray is None and not line.startswith(b":") and line.partition(b":")[0] not in _FIELDS:
            self.stray = line
