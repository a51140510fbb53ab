-- SHA-256 of a batch's events as received, by which another batch under the same id is detected.
-- NULL: stored by an earlier release without digests.

ALTER TABLE batches ADD COLUMN content BLOB;

-- Number of batches whose id was used before for other events, and the time of the last of them.

CREATE TABLE reused_batch_ids (
    proxy_id  TEXT NOT NULL,
    org_id    TEXT NOT NULL,
    count     INTEGER NOT NULL,
    latest_ms INTEGER NOT NULL,
    PRIMARY KEY (proxy_id, org_id)
) STRICT, WITHOUT ROWID;
