"""The saver of probes: writes their file beside the steps."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from inflight.execution.length_probe.probe import LengthProbe
from inflight.execution.length_probe.probe_file import arrays_of, write_probes

log = logging.getLogger(__name__)

SAVE_S = 60.0  # between the beginnings of two saves at least


class ProbeSaver:
    """Saves at the end, and now and then in a thread beside the steps, so that a killed process loses little."""

    def __init__(self, path: Path):
        self._path = path
        self._last = time.monotonic()
        self._thread: threading.Thread | None = None
        self._has_failed = False

    def save_if_due(self, probes: Mapping[str, LengthProbe]) -> None:
        """Save probes as they are now, if the last save is long ago and has ended. The steps wait for a copy alone."""
        now = time.monotonic()
        if now - self._last < SAVE_S or (self._thread is not None and self._thread.is_alive()):
            return
        self._last = now
        self._thread = threading.Thread(target=self._write, args=(arrays_of(probes),), name="probe saver", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the end of a save that has begun."""
        if self._thread is not None:
            self._thread.join()

    def close(self, probes: Mapping[str, LengthProbe]) -> None:
        """Save probes for the last time."""
        self.wait()
        if probes:
            self._write(arrays_of(probes))

    def _write(self, arrays: Mapping[str, object]) -> None:
        try:
            write_probes(self._path, arrays)
        except OSError as error:
            level = logging.DEBUG if self._has_failed else logging.WARNING
            log.log(level, "The probe of output lengths cannot be saved to %s: %s.", self._path, error)
            self._has_failed = True
