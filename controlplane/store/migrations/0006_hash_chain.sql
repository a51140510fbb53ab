-- Changes of each organisation's blocks of events. Each row is hashed together with the row before it.

CREATE TABLE chain (
    org_id     TEXT NOT NULL,
    number     INTEGER NOT NULL,    -- number of the link in its organisation: 1, 2, 3, ...
    kind       TEXT NOT NULL CHECK (kind IN ('block', 'adopted', 'purge')),
    chained_ms INTEGER NOT NULL,
    position   INTEGER NOT NULL,    -- position of the block
    count      INTEGER NOT NULL,    -- number of events that were received, or that were purged
    proxy_id   TEXT NOT NULL,
    batch      BLOB NOT NULL,       -- digest of the batch, as in the table batches
    content    BLOB NOT NULL,       -- for a block: SHA-256 of its events' digests; for a purge: the purged events
    link       BLOB NOT NULL,       -- SHA-256 of the previous link and all columns above
    mac        BLOB,                -- MAC of the link, with a key that is derived from the master key
    PRIMARY KEY (org_id, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX chain_purges ON chain (org_id, position) WHERE kind = 'purge';

-- The SHA-256 of each event of a block, one after the other, until the last event is purged.
CREATE TABLE event_digests (
    position INTEGER PRIMARY KEY,   -- position of the block
    digests  BLOB NOT NULL
) STRICT;

CREATE INDEX blocks_of_org ON blocks (org_id);   -- in the order of positions

-- Time and result of the last verification of each organisation's chain.
CREATE TABLE chain_checks (
    org_id     TEXT PRIMARY KEY,
    checked_ms INTEGER NOT NULL,
    links      INTEGER NOT NULL,
    events     INTEGER NOT NULL,
    misfit     TEXT                 -- the first mismatch as JSON; null if there is none
) STRICT, WITHOUT ROWID;
