"""The tables of the database, and how those of earlier versions become them. SQLite itself checks values by them."""

from __future__ import annotations

import sqlite3

VERSION = 4  # PRAGMA user_version
APPLICATION_ID = 0x696E666C  # PRAGMA application_id, from version 2 on
OLD_TABLES = {
    1: {"answers", "files", "jobs"},
    2: {"answers", "files", "jobs", "leftovers", "store"},
    3: {"answers", "files", "jobs", "leftovers", "response_usage", "responses", "store"},
}


def _is_id(column: str, prefix: str) -> str:
    """Return an SQL condition: the prefix and 32 hexadecimal digits."""
    digits = f"substr({column}, {len(prefix) + 1})"
    return f"{column} GLOB '{prefix}*' AND length({digits}) = 32 AND {digits} NOT GLOB '*[^0-9a-f]*'"


# files.state: `writing` from the first byte until all of the content is on the disk, `deleting` until it is removed;
# process: the id of the process that does so. begun: lines in flight, and how many unclean ends each has seen.
# due: seconds of the clock, see `clock`.
CREATE = f"""
CREATE TABLE files (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE CHECK ({_is_id("id", "file-")}),
    tenant TEXT NOT NULL,
    filename TEXT NOT NULL,
    purpose TEXT NOT NULL CHECK (purpose IN ('batch', 'batch_output')),
    bytes INTEGER NOT NULL CHECK (bytes >= 0),
    created_at INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('writing', 'stored', 'deleting')),
    process INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX files_of_tenant ON files (tenant, number);
CREATE INDEX files_by_size ON files (tenant, state, bytes);
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE CHECK ({_is_id("id", "batch_")}),
    tenant TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    input_file_id TEXT NOT NULL CHECK ({_is_id("input_file_id", "file-")}),
    completion_window TEXT NOT NULL,
    metadata TEXT NOT NULL CHECK (json_type(metadata) IN ('object', 'null')),
    status TEXT NOT NULL CHECK (status IN ('validating', 'in_progress', 'finalizing', 'cancelling',
                                           'completed', 'failed', 'expired', 'cancelled')),
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    in_progress_at INTEGER,
    finalizing_at INTEGER,
    completed_at INTEGER,
    failed_at INTEGER,
    expired_at INTEGER,
    cancelling_at INTEGER,
    cancelled_at INTEGER,
    output_file_id TEXT CHECK ({_is_id("output_file_id", "file-")}),
    error_file_id TEXT CHECK ({_is_id("error_file_id", "file-")}),
    total INTEGER NOT NULL DEFAULT 0,
    completed INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    errors TEXT NOT NULL DEFAULT '[]' CHECK (json_type(errors) = 'array'),
    due REAL NOT NULL,
    model TEXT,
    input_tokens INTEGER NOT NULL DEFAULT 0,
    cached_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX jobs_of_tenant ON jobs (tenant, number);
CREATE INDEX jobs_by_status ON jobs (status);
CREATE TABLE answers (
    job INTEGER NOT NULL REFERENCES jobs (number),
    line INTEGER NOT NULL,
    custom_id TEXT,
    status INTEGER,
    payload TEXT NOT NULL,
    PRIMARY KEY (job, line)
) STRICT;
CREATE TABLE begun (
    job INTEGER NOT NULL REFERENCES jobs (number),
    line INTEGER NOT NULL,
    ends INTEGER NOT NULL,
    in_flight INTEGER NOT NULL,
    PRIMARY KEY (job, line)
) STRICT, WITHOUT ROWID;
CREATE TABLE clock (
    seconds REAL NOT NULL,
    boot TEXT NOT NULL,
    boot_seconds REAL NOT NULL
) STRICT;
CREATE TABLE responses (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    due REAL NOT NULL,
    bytes INTEGER NOT NULL,
    response TEXT NOT NULL CHECK (json_extract(response, '$.id') = id AND json_type(response, '$.output') = 'array'),
    input_items TEXT NOT NULL CHECK (json_type(input_items) = 'array'),
    UNIQUE (tenant, id)
) STRICT;
CREATE INDEX responses_of_tenant ON responses (tenant, number);
CREATE INDEX responses_by_due ON responses (due);
CREATE TABLE response_usage (
    tenant TEXT PRIMARY KEY,
    bytes INTEGER NOT NULL
) STRICT;
CREATE TRIGGER response_came AFTER INSERT ON responses BEGIN
    INSERT INTO response_usage (tenant, bytes) VALUES (new.tenant, new.bytes)
        ON CONFLICT (tenant) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER response_went AFTER DELETE ON responses BEGIN
    UPDATE response_usage SET bytes = bytes - old.bytes WHERE tenant = old.tenant;
END;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {VERSION};
"""
TABLES = {"answers", "begun", "clock", "files", "jobs", "response_usage", "responses"}


def upgrade_script(connection: sqlite3.Connection, version: int) -> str:
    """Return SQL that moves the rows of an earlier version into tables of today. Which lines were in flight is lost."""
    rows = connection.execute("SELECT type, name FROM sqlite_master WHERE type != 'table' AND sql IS NOT NULL")
    parts = [f"DROP {kind} {name};" for kind, name in rows.fetchall()]
    tables = sorted(OLD_TABLES[version] & TABLES - {"response_usage"})  # answers before jobs, which they refer to
    parts += [f"ALTER TABLE {name} RENAME TO old_{name};" for name in tables]
    if version == 3:
        parts.append("DROP TABLE response_usage;")
    parts.append(CREATE)
    more = {"files": [("state", "'stored'")], "jobs": [("due", "expires_at - created_at")] if version == 1 else []}
    for name in reversed(tables):
        columns = [(row["name"], row["name"]) for row in connection.execute(f"PRAGMA table_info({name})")]
        columns += more.get(name, [])
        names, values = (", ".join(one[side] for one in columns) for side in (0, 1))
        parts.append(f"INSERT INTO {name} ({names}) SELECT {values} FROM old_{name};")
    parts += [f"DROP TABLE old_{name};" for name in tables]
    if version == 1:
        return "".join([*parts, "INSERT INTO clock VALUES (0, '', 0);"])
    parts.append(
        "INSERT OR IGNORE INTO files (id, tenant, filename, purpose, bytes, created_at, state)"
        " SELECT id, '', '', 'batch', 0, 0, kind FROM leftovers;"
        "INSERT INTO clock SELECT seconds, boot, boot_seconds FROM store; DROP TABLE leftovers; DROP TABLE store;"
    )
    return "".join(parts)
