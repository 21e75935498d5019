"""How much each tenant may keep: bytes and files, uploads and outputs alike.

Knows limits, what is on its way in beside what is stored, and the sentences. Outputs of jobs count but are never
refused, since a job must be able to end: so no job begins where nothing more may be kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from inflight.server.errors import ApiError
from inflight.server.tenants import Tenant


@dataclass(frozen=True, slots=True)
class Usage:
    """What a tenant keeps, or may keep."""

    bytes: int
    files: int


class OverQuota(RuntimeError):
    """Something does not fit beside what the tenant has. The first argument is that `Usage`."""


class Quotas:
    def __init__(self, max_stored_mb: float, max_stored_files: int):
        """Of each tenant that has no limits of its own."""
        self._usual_mb, self._usual_files = max_stored_mb, max_stored_files
        self._coming_bytes: Counter[str] = Counter()  # by tenant
        self._coming_files: Counter[str] = Counter()

    def of(self, tenant: Tenant) -> Usage:
        megabytes = self._usual_mb if tenant.max_stored_mb is None else tenant.max_stored_mb
        files = self._usual_files if tenant.max_stored_files is None else tenant.max_stored_files
        return Usage(int(megabytes * 2**20), files)

    @contextmanager
    def intake(self, tenant: Tenant, stored: Usage) -> Iterator[Intake]:
        """One upload, from its first byte to its end. Raises ApiError where there is no place for a file at all."""
        intake = Intake(self, tenant, stored)
        self._coming_files[tenant.name] += 1
        try:
            intake.take(0)
            yield intake
        finally:
            self._coming_files[tenant.name] -= 1
            self._coming_bytes[tenant.name] -= intake.bytes
            for coming in (self._coming_files, self._coming_bytes):
                if not coming[tenant.name]:
                    del coming[tenant.name]

    def coming(self, tenant: str) -> Usage:
        return Usage(self._coming_bytes[tenant], self._coming_files[tenant])

    def took(self, tenant: str, size: int) -> None:
        self._coming_bytes[tenant] += size

    def refusal(self, tenant: Tenant, stored: Usage, what: str = "this one", param: str | None = "file") -> ApiError:
        """413, which no client tries again by itself. what: has no place."""
        most = self.of(tenant)
        mebibytes = f"{stored.bytes / 2**20:.1f} of at most {most.bytes / 2**20:g} MiB"
        return ApiError(
            413,
            f"You keep {stored.files} of at most {most.files} files with {mebibytes}, and {what} does not fit beside "
            "them and those on their way; delete files.",
            param=param,
            code="storage_quota_exceeded",
        )


class Intake:
    """An upload on its way in."""

    def __init__(self, quotas: Quotas, tenant: Tenant, stored: Usage):
        self._quotas, self._tenant, self._stored = quotas, tenant, stored
        self.bytes = 0

    def take(self, size: int) -> None:
        """So many bytes more. Raises ApiError where they do not fit."""
        most, coming = self._quotas.of(self._tenant), self._quotas.coming(self._tenant.name)
        if self._stored.files + coming.files > most.files or self._stored.bytes + coming.bytes + size > most.bytes:
            raise self._quotas.refusal(self._tenant, self._stored)
        self._quotas.took(self._tenant.name, size)
        self.bytes += size
