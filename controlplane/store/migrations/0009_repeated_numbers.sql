-- Number of events with duplicate sequence numbers, and the time of the last of them.

ALTER TABLE sequences ADD COLUMN repeated INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sequences ADD COLUMN repeated_ms INTEGER;
