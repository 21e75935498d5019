"""Register LoRA adapters by the names that requests use.

An adapter that is added under the name of a removed one is a different adapter (`Adapter.number`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path

from inflight.core.types.sampling import MAX_NAME_CHARS, Adapter
from inflight.counted import shortened


class AdapterNameError(ValueError):
    """Raised for an adapter's name that is unknown, taken or malformed."""


class AdapterNames:
    def __init__(self, check: Callable[[Path], None] | None = None, adapters: Iterable[Adapter] = ()) -> None:
        """Register the given adapters.

        Args:
            check: Raises ModelError for files that do not fit the model; None: the engine has no slots for adapters.
            adapters: Known at the start.
        """
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
        """Return the adapter of a name, or None for None. Raises AdapterNameError for an unknown name."""
        if name is not None and name not in self._by_name:
            raise self._unknown(name)
        return self.named(name)

    def add(self, name: str, path: Path) -> Adapter:
        """Add an adapter.

        Raises:
            AdapterNameError: The name is taken or malformed, or the engine has no slots for adapters.
            ModelError: The files do not fit the model.
        """
        if not 0 < len(name) <= MAX_NAME_CHARS or not name.isprintable():
            raise AdapterNameError(f"An adapter's name has 1 to {MAX_NAME_CHARS} characters, each printable.")
        if (known := self._by_name.get(name)) is not None:
            raise AdapterNameError(
                f"The adapter {shortened(name)!r} is already loaded from {known.path}; unload it first."
            )
        if self._check is None:
            raise AdapterNameError("This engine has 0 slots for adapters; start it with --max-loras.")
        self._check(path)
        added = self._by_name[name] = Adapter(name, str(path), next(self._numbers))
        return added

    def replace(self, adapters: Iterable[Adapter]) -> None:
        """Replace all adapters by those of the engine's process."""
        self._by_name = {one.name: one for one in adapters}

    def remove(self, name: str) -> Adapter:
        """Remove a name; requests in flight keep the adapter. Raises AdapterNameError for an unknown name."""
        if name not in self._by_name:
            raise self._unknown(name)
        return self._by_name.pop(name)

    def _unknown(self, name: str) -> AdapterNameError:
        there = f"there are {', '.join(self._by_name)}" if self._by_name else "there are none"
        return AdapterNameError(f"There is no adapter {shortened(name)!r}; {there}.")
