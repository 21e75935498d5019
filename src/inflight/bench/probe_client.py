"""Single requests to a server before a run, so that a wrong address is one sentence and not a thousand failed
requests."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from inflight.bench.client_types import BenchError, Target

_IGNORED = "X-Inflight-Ignored-Fields"
MAX_BODY_BYTES = 4 << 20  # of an answer
_SHOWN = 300  # characters of a server's words that are repeated in a sentence


@dataclass(frozen=True, slots=True)
class ProbeResponse:
    """status: of HTTP. body: parsed JSON, None where it is none. text: as received. ignored: fields that the server
    reports as ignored."""

    status: int
    body: Any
    text: str
    ignored: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.status == 200

    @property
    def error(self) -> dict[str, Any]:
        """Return OpenAI's wrapped error, or the flat one of some servers; empty where there is neither."""
        found = self.body.get("error", self.body) if isinstance(self.body, dict) else {}
        return found if isinstance(found, dict) else {"message": str(found)}

    @property
    def message(self) -> str:
        said = str(self.error.get("message") or self.error.get("detail") or self.text).strip()
        return said[:_SHOWN] + ("…" if len(said) > _SHOWN else "")

    @property
    def frames(self) -> list[dict[str, Any]]:
        """Return the JSON objects of an event stream."""
        found = []
        for line in self.text.splitlines():
            data = line.removeprefix("data:").strip()
            if line.startswith("data:") and data != "[DONE]":
                found.append(_json(data))
        return [frame for frame in found if isinstance(frame, dict)]

    @property
    def usage(self) -> dict[str, Any]:
        """Return the last usage of an event stream; empty where there is none."""
        usages = [frame["usage"] for frame in self.frames if isinstance(frame.get("usage"), dict)]
        return usages[-1] if usages else {}


class ProbeClient:
    def __init__(self, target: Target, patience_s: float = 60.0):
        self._target = target
        self._patience = min(patience_s, target.timeout_s)
        # As in a run: without the environment's proxies.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str) -> ProbeResponse:
        return self._ask(urllib.request.Request(self._target.url + path, headers=dict(self._target.headers)))

    def post(self, path: str, body: dict[str, Any]) -> ProbeResponse:
        headers = {**self._target.headers, "Content-Type": "application/json"}
        data = json.dumps(body).encode()
        return self._ask(urllib.request.Request(self._target.url + path, data, headers))

    def _ask(self, request: urllib.request.Request) -> ProbeResponse:
        """Send a request; raise BenchError where there is no answer at all. The caller judges the status."""
        try:
            with self._opened(request) as answer:
                return _answer(answer.status, self._read(answer), answer.headers.get(_IGNORED, ""))
        except (OSError, http.client.HTTPException) as error:
            raise BenchError(self._why(request.full_url, getattr(error, "reason", error))) from None

    def _opened(self, request: urllib.request.Request) -> Any:
        """Return the answer, an error's too, whose body is still to be read."""
        try:
            return self._opener.open(request, timeout=self._patience)
        except urllib.error.HTTPError as error:
            return error

    def _read(self, answer: Any) -> bytes:
        """Return the body. Raises TimeoutError, and BenchError where it is too long."""
        body, end = bytearray(), time.monotonic() + self._patience
        while data := answer.read1(MAX_BODY_BYTES):
            body += data
            if len(body) > MAX_BODY_BYTES:
                raise BenchError(f"{answer.url} answers with more than {MAX_BODY_BYTES:,} bytes; check the address.")
            if time.monotonic() > end:
                raise TimeoutError
        return bytes(body)

    def _why(self, url: str, cause: object) -> str:
        advice = "Start it (ours: inflight serve), or correct the address."
        if isinstance(cause, TimeoutError):
            return f"{url} did not answer within {self._patience:g} s. {advice}"
        if isinstance(cause, http.client.IncompleteRead):
            return f"{url} ended within its answer. {advice}"
        if isinstance(cause, http.client.HTTPException) and not isinstance(cause, ConnectionError):
            return f"The server at {self._target.url} does not speak HTTP: {str(cause) or type(cause).__name__}"
        if isinstance(cause, http.client.RemoteDisconnected | ConnectionResetError):
            return f"{url} gave no answer: {cause}."
        why = cause.strerror if isinstance(cause, OSError) and cause.strerror else cause
        return f"No server answers at {self._target.url}: {why}. {advice}"


def _answer(status: int, content: bytes, ignored: str = "") -> ProbeResponse:
    text = content.decode("utf-8", "replace")
    return ProbeResponse(status, _json(text), text, tuple(ignored.split(", ")) if ignored else ())


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
