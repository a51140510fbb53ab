-- Operators of the admin API and the console, and the operator log.

CREATE TABLE operators (
    operator_id   TEXT PRIMARY KEY,
    name          TEXT NOT NULL UNIQUE COLLATE NOCASE,
    password_hash TEXT,               -- argon2id; null if the operator has no password
    enabled       INTEGER NOT NULL DEFAULT 1,
    created_ms    INTEGER NOT NULL
) STRICT;

-- One role for each organisation; '*' means all of them, including future ones.
CREATE TABLE operator_roles (
    operator_id TEXT NOT NULL REFERENCES operators,
    org_id      TEXT NOT NULL,
    role        TEXT NOT NULL CHECK (role IN ('viewer', 'editor', 'admin')),
    PRIMARY KEY (operator_id, org_id)
) STRICT, WITHOUT ROWID;

-- Only digests of session ids and tokens, so that a reader of this file can't sign in with its content.
CREATE TABLE operator_sessions (
    digest      BLOB PRIMARY KEY,
    operator_id TEXT NOT NULL REFERENCES operators,
    created_ms  INTEGER NOT NULL,
    used_ms     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX operator_sessions_operator ON operator_sessions (operator_id);

CREATE TABLE operator_tokens (
    token_id    TEXT PRIMARY KEY,
    operator_id TEXT NOT NULL REFERENCES operators,
    name        TEXT NOT NULL,
    digest      BLOB NOT NULL UNIQUE,
    created_ms  INTEGER NOT NULL,
    expires_ms  INTEGER NOT NULL,
    UNIQUE (operator_id, name)
) STRICT;

-- A line is written before its operation, and the outcome after it. A line without an outcome was interrupted.
CREATE TABLE operator_log (
    position  INTEGER PRIMARY KEY AUTOINCREMENT,
    time_ms   INTEGER NOT NULL,
    operator  TEXT NOT NULL,
    address   TEXT NOT NULL,
    operation TEXT NOT NULL,
    request   TEXT NOT NULL,          -- JSON with masked secrets
    org_ids   TEXT NOT NULL,          -- JSON array: the organisations that the operation affected
    outcome   TEXT                    -- 'done', or the code of the refusal
) STRICT;
CREATE INDEX operator_log_time ON operator_log (time_ms);

-- The reason why a version was applied, in the words of the operator.
ALTER TABLE ruleset_versions ADD COLUMN note TEXT;
