-- Deleted things. The row of a thing is gone from its own table, so that its name is free and no program uses it as
-- an existing one. Events, reports and the operator log still name it.

CREATE TABLE tombstones (
    id         TEXT NOT NULL PRIMARY KEY, -- id of the deleted thing
    kind       TEXT NOT NULL CHECK (kind IN ('org', 'app', 'ruleset', 'proxy', 'operator')),
    name       TEXT NOT NULL,
    org_ids    TEXT NOT NULL, -- JSON array: the organisations that it belonged to
    client_id  TEXT,          -- client id, if it was an application
    ruleset_id TEXT,          -- the ruleset that last evaluated it, if it was an application
    retention  TEXT,          -- set if it was an organisation
    created_ms INTEGER,       -- set if it was an organisation
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
    digest     TEXT NOT NULL, -- digest of a schema, which the previous release may remove
    PRIMARY KEY (ruleset_id, version, root)
) STRICT;
CREATE INDEX deleted_version_schemas_digest ON deleted_version_schemas (digest);

-- Proxies that served a deleted organisation, and that may still send pending events.
CREATE TABLE owed_events (
    proxy_id TEXT NOT NULL,
    org_id   TEXT NOT NULL,
    PRIMARY KEY (proxy_id, org_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX owed_events_org ON owed_events (org_id);
