-- Deleted things. The row of a thing is gone from its own table, so that its name is free and no program uses it as
-- an existing one. Events, reports and the operator log still name it.

CREATE TABLE tombstones (
    id         text COLLATE "C" NOT NULL PRIMARY KEY, -- id of the deleted thing
    kind       text COLLATE "C" NOT NULL CHECK (kind IN ('org', 'app', 'ruleset', 'proxy', 'operator')),
    name       text COLLATE "C" NOT NULL,
    org_ids    text COLLATE "C" NOT NULL, -- JSON array: the organisations that it belonged to
    client_id  text COLLATE "C",          -- client id, if it was an application
    ruleset_id text COLLATE "C",          -- the ruleset that last evaluated it, if it was an application
    retention  text COLLATE "C",          -- set if it was an organisation
    created_ms bigint,                    -- set if it was an organisation
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
    digest     text COLLATE "C" NOT NULL, -- digest of a schema, which the previous release may remove
    PRIMARY KEY (ruleset_id, version, root)
);
CREATE INDEX deleted_version_schemas_digest ON deleted_version_schemas (digest);

-- Proxies that served a deleted organisation, and that may still send pending events.
CREATE TABLE owed_events (
    proxy_id text COLLATE "C" NOT NULL,
    org_id   text COLLATE "C" NOT NULL,
    PRIMARY KEY (proxy_id, org_id)
);
CREATE INDEX owed_events_org ON owed_events (org_id);
