-- Time of the heartbeat that announced a regular stop. A later message changes last_seen_ms, and the proxy is back.

ALTER TABLE proxies ADD COLUMN ended_ms INTEGER;
