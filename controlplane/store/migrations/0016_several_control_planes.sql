-- What several control planes over one store must know together.

-- Failed sign-ins of the last minutes. Digests, so that a row is small and holds nothing that a stranger typed.
CREATE TABLE sign_in_attempts (
    attempt_id INTEGER PRIMARY KEY AUTOINCREMENT,
    failed_ms  INTEGER NOT NULL,
    address    BLOB NOT NULL,
    name       BLOB,              -- null if the sign-in named nobody
    pair       BLOB               -- name and address; null if the name has signed in from there since
) STRICT;
CREATE INDEX sign_in_attempts_time ON sign_in_attempts (failed_ms);
CREATE INDEX sign_in_attempts_address ON sign_in_attempts (address, failed_ms);
CREATE INDEX sign_in_attempts_name ON sign_in_attempts (name, failed_ms);
CREATE INDEX sign_in_attempts_pair ON sign_in_attempts (pair, failed_ms);

-- Control planes that run. One that was not seen for a while has died.
CREATE TABLE instances (
    instance_id  TEXT PRIMARY KEY,
    name         TEXT NOT NULL,    -- host and process
    version      TEXT NOT NULL,
    started_ms   INTEGER NOT NULL,
    seen_ms      INTEGER NOT NULL,
    leads        INTEGER NOT NULL, -- 1: it does what only one may do
    witnessed_ms INTEGER           -- the newest time that its proxies agreed with
) STRICT;

-- The control plane that writes the line's outcome.
ALTER TABLE operator_log ADD COLUMN instance_id TEXT;
