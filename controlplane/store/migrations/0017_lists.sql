-- Facts of each proxy for lists and counts of the fleet, which then need not read its reports.

-- Time of the newest heartbeat, and the health that the proxy reported in it. NULL before the first heartbeat.
ALTER TABLE proxies ADD COLUMN heard_ms INTEGER;
ALTER TABLE proxies ADD COLUMN said TEXT CHECK (said IN ('ok', 'degraded', 'failed'));
UPDATE proxies SET heard_ms =
    (SELECT max(received_ms) FROM heartbeats WHERE heartbeats.proxy_id = proxies.proxy_id);
UPDATE proxies SET said = 'ok' WHERE heard_ms IS NOT NULL;

-- The versions of rulesets that each proxy reported as enforced in its newest heartbeat.
CREATE TABLE enforced_versions (
    proxy_id   TEXT NOT NULL,
    ruleset_id TEXT NOT NULL,
    version    INTEGER NOT NULL,
    PRIMARY KEY (proxy_id, ruleset_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX enforced_versions_ruleset ON enforced_versions (ruleset_id, version);

CREATE INDEX apps_ruleset ON apps (ruleset_id);
