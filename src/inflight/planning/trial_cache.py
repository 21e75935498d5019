"""Trials that were run before, by all that their result depends on: a question that is asked again, or with one more
comparison, runs only trials that are new."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import pickle
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from msgspec import DecodeError, ValidationError, msgpack

from inflight.planning.demand import Demand
from inflight.planning.simulation import Trial

_PACKAGE = Path(__file__).parents[1]
MAX_FILES = 4000  # of about 2 kB; beyond them the half that was read least lately is removed
ABANDONED = 60.0  # seconds after which a file that is still being written is taken to be left behind


class TrialCache:
    """Trials in files of a folder, by a digest of their inputs and of this package's source."""

    def __init__(self, folder: Path):
        self._folder = folder

    def get_or_run(self, inputs: tuple[Any, ...], run: Callable[[], Trial]) -> Trial:
        """Return the trial of these inputs: as stored, or by running it and storing the result.

        Args:
            inputs: All that the result depends on, picklable; equal inputs have the same trial.
            run: Runs the trial.
        """
        # What is pickled is never loaded: bytes that differ for equal inputs only cost a trial.
        content = pickle.dumps(inputs, protocol=5)
        path = self._folder / hashlib.sha256(_source_digest() + content).hexdigest()
        with contextlib.suppress(OSError, DecodeError, ValidationError):
            found = msgpack.decode(path.read_bytes(), type=Trial)
            with contextlib.suppress(OSError):
                os.utime(path)  # trials that are read stay longest
            return found
        trial = run()
        with contextlib.suppress(OSError):  # no room, or a folder that may not be written: trials are run again
            self._store(path, msgpack.encode(trial))
        return trial

    def _store(self, path: Path, content: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        written = path.with_name(f"{path.name}.{os.getpid()}")
        written.write_bytes(content)
        written.replace(path)  # whole, since others may read or write it
        self._prune(path.stat().st_mtime)

    def _prune(self, now: float) -> None:
        files = list(self._folder.iterdir())
        for one in [one for one in files if one.suffix]:  # being written, or left by a process that was killed
            files.remove(one)
            if one.stat().st_mtime < now - ABANDONED:
                one.unlink(missing_ok=True)
        if len(files) > MAX_FILES:
            for one in sorted(files, key=lambda one: one.stat().st_mtime)[: len(files) // 2]:
                one.unlink(missing_ok=True)


def demand_digest(demand: Demand) -> bytes:
    """Return a digest of a demand, which stands for it among a trial's inputs: a long trace is read once."""
    given = [getattr(demand, one.name) for one in fields(demand)]
    return hashlib.sha256(pickle.dumps((type(demand), given), protocol=5)).digest()


def default_cache() -> TrialCache | None:
    """Return the cache of this user, `$XDG_CACHE_HOME/inflight/trials`; None where there is no home."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:
        return None
    return TrialCache(folder / "inflight" / "trials")


@functools.cache
def _source_digest() -> bytes:
    """Return a digest of this package's code and data, on which every trial depends."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*")):
        if path.suffix in (".py", ".toml", ".json"):
            digest.update(path.read_bytes())
    return digest.digest()
