"""Stored responses in the database: every verb is one transaction, and sees one tenant's rows alone.

Knows the queries; how long responses are kept, and how many bytes of them, `kept` knows.
"""

from __future__ import annotations

import sqlite3
from dataclasses import astuple

from inflight.server.batch.clock import KeptTime
from inflight.server.batch.database import Database
from inflight.server.batch.store import Missing
from inflight.server.responses.stored import StoredResponse

_INSERT = "INSERT INTO responses (tenant, id, due, response, input_items, bytes) VALUES (?, ?, ?, ?, ?, ?)"
_ONE = "tenant = ? AND id = ?"


class ResponseStore:
    def __init__(self, database: Database):
        self._database = database

    async def add(self, one: StoredResponse, most_bytes: int, time: KeptTime) -> None:
        """In the place of one of the same id. What is due goes, and so do the tenant's oldest while it keeps more than
        most_bytes. time: the clock by which it is due."""

        def work(connection: sqlite3.Connection) -> None:
            connection.execute("UPDATE store SET seconds = ?, boot = ?, boot_seconds = ?", astuple(time))
            _remove_due(time.seconds, connection)
            connection.execute(f"DELETE FROM responses WHERE {_ONE}", (one.tenant, one.id))
            connection.execute(_INSERT, (*astuple(one), one.size))
            _remove_oldest(one.tenant, most_bytes, connection)

        await self._database.run(work)

    async def response(self, response_id: str, tenant: str, now: float) -> StoredResponse:
        """now: the clock by which responses are due. Raises Missing; ValueError or TypeError where it is damaged."""
        query = f"SELECT * FROM responses WHERE {_ONE} AND due > ?"

        def work(connection: sqlite3.Connection) -> StoredResponse:
            row = connection.execute(query, (tenant, response_id, now)).fetchone()
            if row is None:
                raise Missing(response_id)
            return StoredResponse.of(row)

        return await self._database.run(work)

    async def delete(self, response_id: str, tenant: str, now: float) -> None:
        """Raises Missing."""

        def work(connection: sqlite3.Connection) -> None:
            _remove_due(now, connection)
            if not connection.execute(f"DELETE FROM responses WHERE {_ONE}", (tenant, response_id)).rowcount:
                raise Missing(response_id)

        await self._database.run_on_full_disk(work)

    async def remove_due(self, now: float) -> None:
        await self._database.run_on_full_disk(lambda connection: _remove_due(now, connection))


def _remove_due(now: float, connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM responses WHERE due <= ?", (now,))


def _remove_oldest(tenant: str, most_bytes: int, connection: sqlite3.Connection) -> None:
    (used,) = connection.execute("SELECT bytes FROM response_usage WHERE tenant = ?", (tenant,)).fetchone()
    rows = connection.execute("SELECT number, bytes FROM responses WHERE tenant = ? ORDER BY number", (tenant,))
    old = []
    while used > most_bytes and (row := rows.fetchone()) is not None:
        used -= row["bytes"]
        old.append((row["number"],))
    connection.executemany("DELETE FROM responses WHERE number = ?", old)
