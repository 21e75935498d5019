"""The log of ignored fields, in processes that read bodies: it is there before the web framework is loaded."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from inflight.counted import counted
from inflight.server.common.bodies import nearest
from inflight.server.common.prepared import EndpointName
from inflight.server.registry import ENDPOINTS

REPORT_SECONDS = 600.0  # in which the log names a field once
MAX_REPORTED = 256  # names that are remembered

_log = logging.getLogger("inflight.server")


class IgnoredFieldLog:
    """Logs the names of ignored fields: each at most once in ten minutes, and of a bounded number of names."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._reported: dict[str, float] = {}  # by name, in the order of their times

    def note(self, endpoint: EndpointName, names: Sequence[str]) -> None:
        if new := [name for name in names if self._is_news(name)]:
            known = ENDPOINTS[endpoint].body.names
            shown = ", ".join(_with_hint(name, None if name in known else nearest(name, known)) for name in new)
            _log.warning(
                f"{counted(len(new), 'unknown field')} of a body for {ENDPOINTS[endpoint].path} ignored: {shown} (each "
                f"is reported once in {REPORT_SECONDS / 60:g} min; `inflight serve --unknown-fields` may refuse them)."
            )

    def _is_news(self, name: str) -> bool:
        now = self._clock()
        for old, reported in tuple(self._reported.items()):
            if now - reported < REPORT_SECONDS:
                break
            del self._reported[old]
        if name in self._reported or len(self._reported) >= MAX_REPORTED:
            return False
        self._reported[name] = now
        return True


def _with_hint(name: str, near: str | None) -> str:
    return repr(name) if near is None else f"{name!r} (did you mean {near!r}?)"
