-- Reports of proxies about themselves.

CREATE TABLE heartbeats (
    proxy_id    TEXT NOT NULL,
    received_ms INTEGER NOT NULL,
    body        TEXT NOT NULL,
    PRIMARY KEY (proxy_id, received_ms)
) STRICT;

-- One row for each window, so that a window that is reported twice counts once.
CREATE TABLE metrics (
    proxy_id     TEXT NOT NULL,
    window_start TEXT NOT NULL,
    received_ms  INTEGER NOT NULL,
    body         TEXT NOT NULL,
    PRIMARY KEY (proxy_id, window_start)
) STRICT;
CREATE INDEX metrics_received ON metrics (proxy_id, received_ms);
