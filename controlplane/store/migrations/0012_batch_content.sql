-- What a batch held, so that another one under its id is found out: SHA-256 of its events as they came.
-- NULL: stored by an earlier release, which kept no digest.

ALTER TABLE batches ADD COLUMN content BLOB;

-- Batches that came under an id used before for other events: how many, and when the last of them.

ALTER TABLE sequences ADD COLUMN reused INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sequences ADD COLUMN reused_ms INTEGER;
