-- When the control plane received each block of events. Retention counts from there.

CREATE TABLE receipts (
    position    INTEGER PRIMARY KEY,   -- the block's
    org_id      TEXT NOT NULL,
    received_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX receipts_of_org ON receipts (org_id, received_ms);

CREATE INDEX chain_blocks ON chain (org_id, position) WHERE kind <> 'purge';

-- The chain recorded the receipt of each block since it exists. A block that is older than the chain was
-- received before it was adopted; its events' own times are all that is known of it.
INSERT INTO receipts SELECT blocks.position, blocks.org_id,
        CASE links.kind
            WHEN 'block' THEN links.chained_ms
            WHEN 'adopted' THEN min(links.chained_ms, blocks.most_ms)
            ELSE blocks.most_ms
        END
    FROM blocks LEFT JOIN (SELECT position, kind, chained_ms FROM chain WHERE kind <> 'purge') AS links
        ON links.position = blocks.position;

-- Events whose time can't be true, marked when they came.
CREATE TABLE implausible_times (
    proxy_id  TEXT NOT NULL,
    org_id    TEXT NOT NULL,
    count     INTEGER NOT NULL,
    latest_ms INTEGER NOT NULL,         -- when the last of them came
    PRIMARY KEY (proxy_id, org_id)
) STRICT, WITHOUT ROWID;

-- What an operator has acknowledged of a proxy's trail: it no longer counts against the proxy's health.
CREATE TABLE acknowledged_losses (
    proxy_id        TEXT NOT NULL,
    org_id          TEXT NOT NULL,
    seq             INTEGER NOT NULL,   -- missing numbers up to this one
    unlisted        INTEGER NOT NULL,   -- so many of the missing numbers that no range names
    repeated        INTEGER NOT NULL,   -- so many events under repeated numbers
    implausible     INTEGER NOT NULL,   -- so many events with implausible times
    acknowledged_ms INTEGER NOT NULL,
    acknowledged_by TEXT NOT NULL,
    note            TEXT NOT NULL,
    PRIMARY KEY (proxy_id, org_id)
) STRICT, WITHOUT ROWID;
