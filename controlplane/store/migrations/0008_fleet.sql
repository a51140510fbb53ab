-- How far a proxy's clock was from ours when its heartbeat came; none for those from before this release.

ALTER TABLE heartbeats ADD COLUMN skew_ms INTEGER;
