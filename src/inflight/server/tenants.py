"""Tenants: owners of API keys, with their limits. Keys themselves are never retained or shown, but their digests.

A keys file is TOML, one table a tenant:

    [acme]
    key = "sk-…"              # or key_sha256 = "…", so that the file holds no secret
    weight = 2.0              # share under --policy fair
    max_concurrent = 16       # requests in flight at once
    max_batch_jobs = 4        # batch jobs that are not ended
    max_stored_mb = 2048      # MiB of files, uploads and outputs; instead of --max-stored-mb
    max_stored_files = 500    # instead of --max-stored-files
    max_responses_mb = 256    # MiB of stored responses; instead of --max-responses-mb
    best_priority = 10        # the lowest number that its requests may give under --policy priority
    adapters = ["sql"]        # that its requests may name; without it all of them
    operator = true           # may load and unload adapters
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from inflight.counted import cause_of
from inflight.server.errors import ApiError


class KeysError(ValueError):
    """The keys file cannot be used; the sentence says where and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """An owner of requests.

    Attributes:
        name: "" is every client, where the server has no keys.
        max_concurrent, max_batch_jobs: None: no limit.
        max_stored_mb, max_stored_files, max_responses_mb: None: the server's own limit.
        best_priority: The lowest number, which is served first, that its requests may give as their priority; requests
            that give none have 0, or this where it is above 0.
        adapters: That its requests may name; None: all.
        operator: May change what is served, as may those whose keys are on the command line, and every client where
            there are no keys.
    """

    name: str = ""
    weight: float = 1.0
    max_concurrent: int | None = None
    max_batch_jobs: int | None = None
    max_stored_mb: float | None = None
    max_stored_files: int | None = None
    max_responses_mb: float | None = None
    best_priority: int | None = None
    adapters: tuple[str, ...] | None = None
    operator: bool = False

    def may_name(self, adapter: str) -> bool:
        return self.adapters is None or adapter in self.adapters

    def __post_init__(self) -> None:
        if isinstance(self.weight, bool) or not isinstance(self.weight, int | float) or not 0 < self.weight < 1e9:
            raise KeysError(f"The tenant {self.name!r} has the weight {self.weight!r}; give a number above 0.")
        for name in ("max_concurrent", "max_batch_jobs", "max_stored_files"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise KeysError(f"The tenant {self.name!r} has {name} {value!r}; give a whole number above 0.")
        best = self.best_priority
        if best is not None and (isinstance(best, bool) or not isinstance(best, int) or not -(2**31) <= best < 2**31):
            raise KeysError(f"The tenant {self.name!r} has best_priority {best!r}; give a whole number of 32 bits.")
        for name in ("max_stored_mb", "max_responses_mb"):
            most = getattr(self, name)
            fits = isinstance(most, int | float) and not isinstance(most, bool) and 0 < most < 2**31
            if most is not None and not fits:
                raise KeysError(f"The tenant {self.name!r} has {name} {most!r}; give a number above 0.")


ANYONE = Tenant(operator=True)


class Tenants:
    """Maps keys to tenants. Without any key every client is let in, as `ANYONE`."""

    def __init__(
        self,
        keys: Iterable[tuple[bytes, Tenant]] = (),
        file: Path | None = None,
        given: tuple[tuple[bytes, Tenant], ...] = (),
    ):
        """Take keys, of which several may have the same tenant.

        Args:
            keys: SHA-256 digest of each key, and its tenant.
            file: Of the keys that can be read again.
            given: The others, of the command line.
        """
        self._keys, self.file, self._given = tuple(keys), file, given
        self.reloading = asyncio.Lock()  # the file is read once at a time: what was read last is what it has now

    @property
    def required(self) -> bool:
        return bool(self._keys)

    @property
    def keys(self) -> tuple[tuple[bytes, Tenant], ...]:
        """Return the digests of all keys, each with its tenant."""
        return self._keys

    def reread(self) -> Tenants:
        """Return the same tenants with the keys that the file has now. Raises KeysError."""
        assert self.file is not None, "checked"
        return _tenants(self._given, self.file)

    def take(self, other: Tenants) -> None:
        """Have the keys of another one from now on."""
        self._keys = other.keys

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all tenants whose requests may come."""
        return tuple(sorted({tenant.name for _, tenant in self._keys})) or (ANYONE.name,)

    @property
    def weights(self) -> dict[str, float]:
        """Return the weights that are not 1, by name."""
        return {tenant.name: tenant.weight for _, tenant in self._keys if tenant.weight != 1.0}

    def named(self, name: str) -> Tenant:
        """Return the tenant of that name as it is today; one without limits, if its key was removed."""
        return next((tenant for _, tenant in self._keys if tenant.name == name), Tenant(name=name))

    def of(self, authorization: str | None) -> Tenant:
        """Return the tenant of an Authorization header. Raises ApiError 401."""
        if not self._keys:
            return ANYONE
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise ApiError(
                401,
                "No API key was given; send the header `Authorization: Bearer KEY` or `x-api-key: KEY`.",
                code="missing_api_key",
            )
        given, found = digest(key.strip()), None
        for known, tenant in self._keys:  # every key is compared, so that the time says nothing about which one fits
            if hmac.compare_digest(known, given):
                found = tenant
        if found is None:
            raise ApiError(401, "Incorrect API key provided; check it.", code="invalid_api_key")
        return found


def digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def load_tenants(api_keys: Iterable[str] = (), keys_file: Path | None = None) -> Tenants:
    """Keys of the command line (the first is the tenant "default", the next "default-2", …) and of a file."""
    given = []
    for number, key in enumerate(api_keys, 1):
        if not key.strip():
            raise KeysError("--api-key is empty; give a key, or leave it out to require no key.")
        name = "default" if number == 1 else f"default-{number}"
        given.append((digest(key.strip()), Tenant(name=name, operator=True)))
    return _tenants(tuple(given), keys_file)


def _tenants(given: tuple[tuple[bytes, Tenant], ...], file: Path | None) -> Tenants:
    """given: keys of the command line. Raises KeysError."""
    keys = [*given, *(() if file is None else _from_file(file))]
    seen: dict[bytes, str] = {}
    for known, tenant in keys:
        if known in seen and seen[known] != tenant.name:
            raise KeysError(f"The tenants {seen[known]!r} and {tenant.name!r} have the same key; give each its own.")
        seen[known] = tenant.name
    return Tenants(keys, file, given)


def _from_file(path: Path) -> list[tuple[bytes, Tenant]]:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise KeysError(f"--api-keys-file {path} cannot be read: {cause_of(error)}.") from None
    if not tables:
        raise KeysError(f"--api-keys-file {path} has no tenants; write a table [NAME] with a key for each tenant.")
    return [(_key(path, name, table), _tenant(path, name, table)) for name, table in tables.items()]


def _key(path: Path, name: str, table: Any) -> bytes:
    if not isinstance(table, dict) or ("key" in table) == ("key_sha256" in table):
        raise KeysError(f"--api-keys-file {path}: {name!r} needs a table with either key or key_sha256.")
    if "key" in table:
        if not isinstance(table["key"], str) or not table["key"].strip():
            raise KeysError(f"--api-keys-file {path}: the key of {name!r} is empty; give text.")
        return digest(table["key"].strip())
    try:
        known = bytes.fromhex(table["key_sha256"])
    except (TypeError, ValueError):
        known = b""
    if len(known) != 32:
        raise KeysError(f"--api-keys-file {path}: key_sha256 of {name!r} must be 64 hexadecimal digits.")
    return known


def _tenant(path: Path, name: str, table: dict[str, Any]) -> Tenant:
    limits = {key: value for key, value in table.items() if key not in ("key", "key_sha256")}
    known = [item.name for item in fields(Tenant) if item.name != "name"]
    for key in limits:
        if key not in known:
            raise KeysError(f"--api-keys-file {path}: {name!r} has {key!r}; known are key, {', '.join(known)}.")
    adapters, operator = limits.get("adapters"), limits.get("operator", False)
    if adapters is not None:
        if not isinstance(adapters, list) or not all(isinstance(one, str) for one in adapters):
            raise KeysError(f"--api-keys-file {path}: adapters of {name!r} must be a list of their names.")
        limits["adapters"] = tuple(adapters)
    if not isinstance(operator, bool):
        raise KeysError(f"--api-keys-file {path}: operator of {name!r} is {operator!r}; give true or false.")
    return Tenant(name=name, **limits)
