-- When the heartbeat came with which a proxy stopped in order. Any later message changes last_seen_ms, and the proxy is back.

ALTER TABLE proxies ADD COLUMN ended_ms bigint;
