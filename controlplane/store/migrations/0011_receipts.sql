-- Time at which the control plane received each block of events. Retention counts from this time.

CREATE TABLE receipts (
    position    INTEGER PRIMARY KEY,   -- position of the block
    org_id      TEXT NOT NULL,
    received_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX receipts_of_org ON receipts (org_id, received_ms);

CREATE INDEX chain_blocks ON chain (org_id, position) WHERE kind <> 'purge';

-- The chain has recorded the receipt of each block since the chain exists. A block that is older than the chain was
-- received before it was adopted; only the times of its events are known.
INSERT INTO receipts SELECT blocks.position, blocks.org_id,
        CASE links.kind
            WHEN 'block' THEN links.chained_ms
            WHEN 'adopted' THEN min(links.chained_ms, blocks.most_ms)
            ELSE blocks.most_ms
        END
    FROM blocks LEFT JOIN (SELECT position, kind, chained_ms FROM chain WHERE kind <> 'purge') AS links
        ON links.position = blocks.position;

-- Events with an implausible time, which are marked on receipt.
CREATE TABLE implausible_times (
    proxy_id  TEXT NOT NULL,
    org_id    TEXT NOT NULL,
    count     INTEGER NOT NULL,
    latest_ms INTEGER NOT NULL,         -- time of the last of these
    PRIMARY KEY (proxy_id, org_id)
) STRICT, WITHOUT ROWID;

-- Losses of a proxy's trail that an operator acknowledged. They no longer affect the health of the proxy.
CREATE TABLE acknowledged_losses (
    proxy_id        TEXT NOT NULL,
    org_id          TEXT NOT NULL,
    seq             INTEGER NOT NULL,   -- missing numbers up to this one
    unlisted        INTEGER NOT NULL,   -- number of acknowledged missing numbers outside the ranges
    repeated        INTEGER NOT NULL,   -- number of acknowledged events with duplicate sequence numbers
    implausible     INTEGER NOT NULL,   -- number of acknowledged events with implausible times
    acknowledged_ms INTEGER NOT NULL,
    acknowledged_by TEXT NOT NULL,
    note            TEXT NOT NULL,
    PRIMARY KEY (proxy_id, org_id)
) STRICT, WITHOUT ROWID;
