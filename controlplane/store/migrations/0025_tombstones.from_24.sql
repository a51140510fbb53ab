-- What was deleted. Its row is gone from its own table, so that its name is free and no program takes it for one that
-- holds. Events, reports and the operator log go on naming it.

CREATE TABLE tombstones (
    id         TEXT NOT NULL PRIMARY KEY, -- of what was deleted
    kind       TEXT NOT NULL CHECK (kind IN ('org', 'app', 'ruleset', 'proxy', 'operator')),
    name       TEXT NOT NULL,
    org_ids    TEXT NOT NULL, -- JSON array: the organisations that it belonged to
    client_id  TEXT,          -- of an app
    ruleset_id TEXT,          -- of an app: the ruleset that evaluated it last
    retention  TEXT,          -- of an organisation
    created_ms INTEGER,       -- of an organisation
    deleted_ms INTEGER NOT NULL,
    deleted_by TEXT NOT NULL
) STRICT;
CREATE INDEX tombstones_name ON tombstones (name);

-- The versions of deleted rulesets, which explain the events that they decided.
CREATE TABLE deleted_versions (
    ruleset_id     TEXT NOT NULL,
    version        INTEGER NOT NULL,
    yaml           TEXT NOT NULL,
    rule_count     INTEGER NOT NULL,
    rolled_back_to INTEGER,
    created_ms     INTEGER NOT NULL,
    note           TEXT,
    PRIMARY KEY (ruleset_id, version)
) STRICT;

CREATE TABLE deleted_version_schemas (
    ruleset_id TEXT NOT NULL,
    version    INTEGER NOT NULL,
    root       TEXT NOT NULL,
    digest     TEXT NOT NULL, -- of a schema, which the release before may remove
    PRIMARY KEY (ruleset_id, version, root)
) STRICT;
CREATE INDEX deleted_version_schemas_digest ON deleted_version_schemas (digest);

-- Proxies that served a deleted organisation: they may still send the events that they owe.
CREATE TABLE owed_events (
    proxy_id TEXT NOT NULL,
    org_id   TEXT NOT NULL,
    PRIMARY KEY (proxy_id, org_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX owed_events_org ON owed_events (org_id);
