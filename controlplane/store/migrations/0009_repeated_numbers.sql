-- Events that came under sequence numbers which others had before: how many, and when the last of them.

ALTER TABLE sequences ADD COLUMN repeated INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sequences ADD COLUMN repeated_ms INTEGER;
