-- What happened to each organisation's blocks of events, each line hashed together with the one before it.

CREATE TABLE chain (
    org_id     TEXT NOT NULL,
    number     INTEGER NOT NULL,    -- of the link in its organisation: 1, 2, 3, ...
    kind       TEXT NOT NULL CHECK (kind IN ('block', 'adopted', 'purge')),
    chained_ms INTEGER NOT NULL,
    position   INTEGER NOT NULL,    -- of the block
    count      INTEGER NOT NULL,    -- events that came, or that a purge took away
    proxy_id   TEXT NOT NULL,
    batch      BLOB NOT NULL,       -- the batch's digest as in batches
    content    BLOB NOT NULL,       -- of a block: SHA-256 of its events' digests; of a purge: what it took
    link       BLOB NOT NULL,       -- SHA-256 of the link before and all of the above
    mac        BLOB,                -- of the link, under a key that is made of the master key
    PRIMARY KEY (org_id, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX chain_purges ON chain (org_id, position) WHERE kind = 'purge';

-- The SHA-256 of each event of a block, one after the other, until the last of them is purged.
CREATE TABLE event_digests (
    position INTEGER PRIMARY KEY,   -- the block's
    digests  BLOB NOT NULL
) STRICT;

CREATE INDEX blocks_of_org ON blocks (org_id);   -- in the order of positions

-- When each organisation's chain was last looked at, and what was found.
CREATE TABLE chain_checks (
    org_id     TEXT PRIMARY KEY,
    checked_ms INTEGER NOT NULL,
    links      INTEGER NOT NULL,
    events     INTEGER NOT NULL,
    misfit     TEXT                 -- what doesn't fit, as JSON; null where everything does
) STRICT, WITHOUT ROWID;
