-- State that several control planes with one store share.

-- Failed sign-ins of the last minutes. Digests keep a row small, and free of text from unauthenticated clients.
CREATE TABLE sign_in_attempts (
    attempt_id INTEGER PRIMARY KEY AUTOINCREMENT,
    failed_ms  INTEGER NOT NULL,
    address    BLOB NOT NULL,
    name       BLOB,              -- null if the sign-in gave no name
    pair       BLOB               -- name and address; null if the name has signed in from there since
) STRICT;
CREATE INDEX sign_in_attempts_time ON sign_in_attempts (failed_ms);
CREATE INDEX sign_in_attempts_address ON sign_in_attempts (address, failed_ms);
CREATE INDEX sign_in_attempts_name ON sign_in_attempts (name, failed_ms);
CREATE INDEX sign_in_attempts_pair ON sign_in_attempts (pair, failed_ms);

-- Running control planes. One that was not seen for a while counts as dead.
CREATE TABLE instances (
    instance_id  TEXT PRIMARY KEY,
    name         TEXT NOT NULL,    -- host and process
    version      TEXT NOT NULL,
    started_ms   INTEGER NOT NULL,
    seen_ms      INTEGER NOT NULL,
    leads        INTEGER NOT NULL, -- 1: it runs the jobs that only one control plane may run
    witnessed_ms INTEGER           -- newest time that the clocks of its proxies confirmed
) STRICT;

-- The control plane that writes the outcome of the line.
ALTER TABLE operator_log ADD COLUMN instance_id TEXT;
