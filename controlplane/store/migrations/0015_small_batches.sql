-- Blocks of events are deflated, which SQL can't read: `graphward audit export` writes events as JSON.

DROP VIEW events;

-- When a batch id may be forgotten. NULL: stored by an earlier release, which kept each for seven years.

ALTER TABLE batches ADD COLUMN forget_ms INTEGER;
CREATE INDEX batches_forget ON batches (forget_ms) WHERE forget_ms IS NOT NULL;
DROP INDEX batches_accepted;
CREATE INDEX batches_of_earlier_releases ON batches (accepted_ms) WHERE forget_ms IS NULL;
