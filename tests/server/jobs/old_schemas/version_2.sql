-- The tables as the version of this number made them.

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
PRAGMA application_id = 1768842860;
INSERT INTO store (id, generation) VALUES ('0123456789abcdef0123456789abcdef', 1);
PRAGMA user_version = 2;
