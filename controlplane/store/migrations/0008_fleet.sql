-- Difference between a proxy's clock and the local one at a heartbeat; null in heartbeats of earlier releases.

ALTER TABLE heartbeats ADD COLUMN skew_ms INTEGER;
