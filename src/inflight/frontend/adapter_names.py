"""Adapters by the names that requests call them by.

Knows names, where their files are, and whom to ask whether a model can be computed with them; not what an adapter is.
One that takes the name of another is another one (`Adapter.number`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path

from inflight.core.types.sampling import MAX_NAME_CHARS, Adapter
from inflight.counted import shortened


class AdapterNameError(ValueError):
    """A name that cannot be used so; the sentence says why."""


class AdapterNames:
    def __init__(self, check: Callable[[Path], None] | None = None, adapters: Iterable[Adapter] = ()) -> None:
        """check: raises ModelError for files that this model cannot be computed with; None: where none can be."""
        self._check = check
        self._by_name = {one.name: one for one in adapters}
        self._numbers = itertools.count(len(self._by_name))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._by_name)

    @property
    def all(self) -> tuple[Adapter, ...]:
        return tuple(self._by_name.values())

    def named(self, name: str | None) -> Adapter | None:
        return None if name is None else self._by_name.get(name)

    def known(self, name: str | None) -> Adapter | None:
        """None for none. Raises AdapterNameError for one that is not there."""
        if name is not None and name not in self._by_name:
            raise self._unknown(name)
        return self.named(name)

    def add(self, name: str, path: Path) -> Adapter:
        """Raises AdapterNameError for a name that is taken or none, ModelError for the files."""
        if not 0 < len(name) <= MAX_NAME_CHARS or not name.isprintable():
            raise AdapterNameError(f"An adapter's name has 1 to {MAX_NAME_CHARS} characters, each printable.")
        if (known := self._by_name.get(name)) is not None:
            raise AdapterNameError(
                f"The adapter {shortened(name)!r} is there already, from {known.path}; unload it first."
            )
        if self._check is None:
            raise AdapterNameError("This engine has 0 slots for adapters; start it with --max-loras.")
        self._check(path)
        added = self._by_name[name] = Adapter(name, str(path), next(self._numbers))
        return added

    def replace(self, adapters: Iterable[Adapter]) -> None:
        """Have these alone, as the engine's process has them."""
        self._by_name = {one.name: one for one in adapters}

    def remove(self, name: str) -> Adapter:
        """Requests under way go on with it. Raises AdapterNameError for one that is not there."""
        if name not in self._by_name:
            raise self._unknown(name)
        return self._by_name.pop(name)

    def _unknown(self, name: str) -> AdapterNameError:
        there = f"there are {', '.join(self._by_name)}" if self._by_name else "there are none"
        return AdapterNameError(f"There is no adapter {shortened(name)!r}; {there}.")
