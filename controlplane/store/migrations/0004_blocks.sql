-- The events of a batch, stored together in one row.

CREATE TABLE blocks (
    position INTEGER PRIMARY KEY,   -- position of the first event; the others follow it
    count    INTEGER NOT NULL,      -- number of events of the array, including purged ones (null)
    org_id   TEXT NOT NULL,
    proxy_id TEXT NOT NULL,
    least_ms INTEGER NOT NULL,      -- lower and upper bound of the times of its events
    most_ms  INTEGER NOT NULL,
    body     BLOB NOT NULL          -- JSON array, each event byte for byte as received
) STRICT;
CREATE INDEX blocks_time ON blocks (org_id, least_ms);

-- An event counts once in its organisation, even if several batches contain it.
CREATE TABLE event_ids (
    org_id TEXT NOT NULL,
    id     TEXT NOT NULL,
    block  INTEGER NOT NULL,        -- position of the block
    PRIMARY KEY (org_id, id)
) STRICT, WITHOUT ROWID;

-- A position is never assigned twice, because the outbox stores its progress as a position.
CREATE TABLE last_position (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    position INTEGER NOT NULL
) STRICT;

INSERT INTO last_position SELECT 1, coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'events';
INSERT INTO event_ids SELECT org_id, id, position FROM events;
INSERT INTO blocks SELECT position, 1, org_id, proxy_id, time_ms, time_ms, CAST('[' || body || ']' AS BLOB)
    FROM events ORDER BY position;
DROP TABLE events;

-- One row for each event, for SQL queries of an operator.
CREATE VIEW events AS
    SELECT blocks.position + each.key AS position, org_id, proxy_id, json_extract(each.value, '$.id') AS id,
        json_extract(each.value, '$.time') AS time, json_extract(each.value, '$.seq') AS seq, each.value AS body
    FROM blocks, json_each(CAST(blocks.body AS TEXT)) AS each WHERE each.type = 'object';
