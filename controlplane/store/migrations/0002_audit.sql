-- Audit events, and the batch ids by which each batch counts once.

-- A position is never assigned twice (AUTOINCREMENT), because the outbox stores its progress as a position.
CREATE TABLE events (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    org_id   TEXT NOT NULL,
    proxy_id TEXT NOT NULL,
    batch    BLOB NOT NULL,     -- digest of the batch, as in the table batches
    time_ms  INTEGER NOT NULL,
    id       TEXT NOT NULL,
    seq      INTEGER,
    body     TEXT NOT NULL      -- JSON of the event, byte for byte as received
) STRICT;
CREATE UNIQUE INDEX events_id ON events (org_id, id);
CREATE INDEX events_time ON events (org_id, time_ms);

-- Batch ids are kept as 16 bytes of their SHA-256, long after the events of the batches are gone.
CREATE TABLE batches (
    proxy_id    TEXT NOT NULL,
    batch       BLOB NOT NULL,
    accepted_ms INTEGER NOT NULL,
    accepted    INTEGER NOT NULL,
    PRIMARY KEY (proxy_id, batch)
) STRICT, WITHOUT ROWID;
CREATE INDEX batches_accepted ON batches (accepted_ms);

-- The batches of the last minute, for the sliding windows of both rate limits.
CREATE TABLE rate_log (
    accepted_ms INTEGER NOT NULL,
    proxy_id    TEXT NOT NULL,
    org_id      TEXT NOT NULL
) STRICT;
CREATE INDEX rate_log_proxy ON rate_log (proxy_id, accepted_ms);
CREATE INDEX rate_log_org ON rate_log (org_id, accepted_ms);
CREATE INDEX rate_log_time ON rate_log (accepted_ms);

-- The last position that each search index has. The outbox is the events after it.
CREATE TABLE outbox_cursor (
    index_name TEXT PRIMARY KEY,
    position   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Sequence numbers: the highest received number, and the missing ranges below it.
CREATE TABLE sequences (
    proxy_id TEXT NOT NULL,
    org_id   TEXT NOT NULL,
    highest  INTEGER NOT NULL,
    unlisted INTEGER NOT NULL,  -- missing numbers beyond the ranges that are kept
    PRIMARY KEY (proxy_id, org_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE sequence_gaps (
    proxy_id TEXT NOT NULL,
    org_id   TEXT NOT NULL,
    first    INTEGER NOT NULL,
    last     INTEGER NOT NULL,
    PRIMARY KEY (proxy_id, org_id, first)
) STRICT, WITHOUT ROWID;
