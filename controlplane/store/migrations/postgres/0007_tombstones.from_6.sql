-- What was deleted. Its row is gone from its own table, so that its name is free and no program takes it for one that
-- holds. Events, reports and the operator log go on naming it.

CREATE TABLE tombstones (
    id         text COLLATE "C" NOT NULL PRIMARY KEY, -- of what was deleted
    kind       text COLLATE "C" NOT NULL CHECK (kind IN ('org', 'app', 'ruleset', 'proxy', 'operator')),
    name       text COLLATE "C" NOT NULL,
    org_ids    text COLLATE "C" NOT NULL, -- JSON array: the organisations that it belonged to
    client_id  text COLLATE "C",          -- of an app
    ruleset_id text COLLATE "C",          -- of an app: the ruleset that evaluated it last
    retention  text COLLATE "C",          -- of an organisation
    created_ms bigint,                    -- of an organisation
    deleted_ms bigint NOT NULL,
    deleted_by text COLLATE "C" NOT NULL
);
CREATE INDEX tombstones_name ON tombstones (name);

-- The versions of deleted rulesets, which explain the events that they decided.
CREATE TABLE deleted_versions (
    ruleset_id     text COLLATE "C" NOT NULL,
    version        bigint NOT NULL,
    yaml           text COLLATE "C" NOT NULL,
    rule_count     bigint NOT NULL,
    rolled_back_to bigint,
    created_ms     bigint NOT NULL,
    note           text COLLATE "C",
    PRIMARY KEY (ruleset_id, version)
);

CREATE TABLE deleted_version_schemas (
    ruleset_id text COLLATE "C" NOT NULL,
    version    bigint NOT NULL,
    root       text COLLATE "C" NOT NULL,
    digest     text COLLATE "C" NOT NULL, -- of a schema, which the release before may remove
    PRIMARY KEY (ruleset_id, version, root)
);
CREATE INDEX deleted_version_schemas_digest ON deleted_version_schemas (digest);

-- Proxies that served a deleted organisation: they may still send the events that they owe.
CREATE TABLE owed_events (
    proxy_id text COLLATE "C" NOT NULL,
    org_id   text COLLATE "C" NOT NULL,
    PRIMARY KEY (proxy_id, org_id)
);
CREATE INDEX owed_events_org ON owed_events (org_id);
