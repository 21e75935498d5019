"""The tables of the database: how they are made, and how those of an earlier version become today's. No queries."""

from __future__ import annotations

import secrets
import sqlite3

VERSION = 3
APPLICATION_ID = 0x696E666C  # says in the file's header whose it is; version 1 did not have it
TABLES = {
    1: ("answers", "files", "jobs"),
    2: ("answers", "files", "jobs", "leftovers", "store"),
    3: ("answers", "files", "jobs", "leftovers", "response_usage", "responses", "store"),
}
_FIRST = """
CREATE TABLE files (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    filename TEXT NOT NULL,
    purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    created_at INTEGER NOT NULL
);
CREATE INDEX files_of_tenant ON files (tenant, number);
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    input_file_id TEXT NOT NULL,
    completion_window TEXT NOT NULL,
    metadata TEXT NOT NULL,
    status TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    in_progress_at INTEGER,
    finalizing_at INTEGER,
    completed_at INTEGER,
    failed_at INTEGER,
    expired_at INTEGER,
    cancelling_at INTEGER,
    cancelled_at INTEGER,
    output_file_id TEXT,
    error_file_id TEXT,
    total INTEGER NOT NULL DEFAULT 0,
    completed INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    errors TEXT NOT NULL DEFAULT '[]'
);
CREATE INDEX jobs_of_tenant ON jobs (tenant, number);
CREATE INDEX jobs_by_status ON jobs (status);
CREATE TABLE answers (
    job INTEGER NOT NULL REFERENCES jobs (number),
    line INTEGER NOT NULL,
    custom_id TEXT,
    status INTEGER,
    payload TEXT NOT NULL,
    PRIMARY KEY (job, line)
);
"""
# leftovers: ids whose content may lie in the folder without a row in `files`, because it is being written or deleted.
# store: one row, see `marker.Identity` and `clock.KeptTime`. due: the store's clock when the job's window ends; a job
# of version 1 gets its window anew, since only a wall clock says how much of it has passed.
_SECOND = f"""
CREATE TABLE leftovers (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL CHECK (kind IN ('writing', 'deleting'))
);
CREATE TABLE store (
    id TEXT NOT NULL,
    generation INTEGER NOT NULL,
    seconds REAL NOT NULL DEFAULT 0,
    boot TEXT NOT NULL DEFAULT '',
    boot_seconds REAL NOT NULL DEFAULT 0
);
ALTER TABLE jobs ADD COLUMN due REAL NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN model TEXT;
ALTER TABLE jobs ADD COLUMN input_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN cached_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN output_tokens INTEGER NOT NULL DEFAULT 0;
UPDATE jobs SET due = expires_at - created_at;
PRAGMA application_id = {APPLICATION_ID};
"""
# responses: see `responses.stored`. due: the store's clock when it goes. response_usage: bytes that each tenant keeps
# of them, summed up as they come and go.
_THIRD = """
CREATE TABLE responses (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    due REAL NOT NULL,
    bytes INTEGER NOT NULL,
    response TEXT NOT NULL,
    input_items TEXT NOT NULL,
    UNIQUE (tenant, id)
);
CREATE INDEX responses_of_tenant ON responses (tenant, number);
CREATE INDEX responses_by_due ON responses (due);
CREATE TABLE response_usage (
    tenant TEXT PRIMARY KEY,
    bytes INTEGER NOT NULL
);
CREATE TRIGGER response_came AFTER INSERT ON responses BEGIN
    INSERT INTO response_usage (tenant, bytes) VALUES (new.tenant, new.bytes)
        ON CONFLICT (tenant) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER response_went AFTER DELETE ON responses BEGIN
    UPDATE response_usage SET bytes = bytes - old.bytes WHERE tenant = old.tenant;
END;
"""


def bring_up_to_date(connection: sqlite3.Connection) -> None:
    """Makes the tables in an empty database, and adds to those of an earlier version what they lack; at once or not at
    all."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == VERSION:
        return
    new_store = f"INSERT INTO store (id, generation) VALUES ('{secrets.token_hex(16)}', 0);"
    script = "".join((_FIRST, f"{_SECOND} {new_store}", _THIRD)[version:])
    try:
        connection.executescript(f"BEGIN IMMEDIATE; {script} PRAGMA user_version = {VERSION}; COMMIT;")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
