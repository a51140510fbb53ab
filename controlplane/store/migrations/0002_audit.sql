-- Audit events, and what makes each batch count once.

-- A position is never given twice (AUTOINCREMENT), since the outbox remembers how far it came by position.
CREATE TABLE events (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    org_id   TEXT NOT NULL,
    proxy_id TEXT NOT NULL,
    batch    BLOB NOT NULL,     -- the batch's digest as in batches
    time_ms  INTEGER NOT NULL,
    id       TEXT NOT NULL,
    seq      INTEGER,
    body     TEXT NOT NULL      -- the event's JSON, byte for byte as it came
) STRICT;
CREATE UNIQUE INDEX events_id ON events (org_id, id);
CREATE INDEX events_time ON events (org_id, time_ms);

-- Batch ids are remembered as 16 bytes of their SHA-256, long after the events that came with them are gone.
CREATE TABLE batches (
    proxy_id    TEXT NOT NULL,
    batch       BLOB NOT NULL,
    accepted_ms INTEGER NOT NULL,
    accepted    INTEGER NOT NULL,
    PRIMARY KEY (proxy_id, batch)
) STRICT, WITHOUT ROWID;
CREATE INDEX batches_accepted ON batches (accepted_ms);

-- The batches of the last minute: the sliding windows of both rate limits.
CREATE TABLE rate_log (
    accepted_ms INTEGER NOT NULL,
    proxy_id    TEXT NOT NULL,
    org_id      TEXT NOT NULL
) STRICT;
CREATE INDEX rate_log_proxy ON rate_log (proxy_id, accepted_ms);
CREATE INDEX rate_log_org ON rate_log (org_id, accepted_ms);
CREATE INDEX rate_log_time ON rate_log (accepted_ms);

-- How far each search index has been fed; the outbox is what lies beyond.
CREATE TABLE outbox_cursor (
    index_name TEXT PRIMARY KEY,
    position   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Sequence numbers: the highest that came, and the ranges below it that did not.
CREATE TABLE sequences (
    proxy_id TEXT NOT NULL,
    org_id   TEXT NOT NULL,
    highest  INTEGER NOT NULL,
    unlisted INTEGER NOT NULL,  -- missing numbers past the ranges that are kept
    PRIMARY KEY (proxy_id, org_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE sequence_gaps (
    proxy_id TEXT NOT NULL,
    org_id   TEXT NOT NULL,
    first    INTEGER NOT NULL,
    last     INTEGER NOT NULL,
    PRIMARY KEY (proxy_id, org_id, first)
) STRICT, WITHOUT ROWID;
