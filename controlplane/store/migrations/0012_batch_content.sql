-- What a batch held, so that another one under its id is found out: SHA-256 of its events as they came.
-- NULL: stored by an earlier release, which kept no digest.

ALTER TABLE batches ADD COLUMN content BLOB;

-- Batches that came under an id used before for other events: how many, and when the last of them.

CREATE TABLE reused_batch_ids (
    proxy_id  TEXT NOT NULL,
    org_id    TEXT NOT NULL,
    count     INTEGER NOT NULL,
    latest_ms INTEGER NOT NULL,
    PRIMARY KEY (proxy_id, org_id)
) STRICT, WITHOUT ROWID;
