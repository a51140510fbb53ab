-- Schemas of graph APIs. An organisation has one current schema for each root path of a service. A version of a
-- ruleset names the ones that were current when it was published, and keeps them.

CREATE TABLE schemas (
    digest TEXT PRIMARY KEY,
    packed BLOB NOT NULL, -- the flat form, compressed
    bytes  INTEGER NOT NULL -- size of the flat form
) STRICT;

CREATE TABLE org_schemas (
    org_id     TEXT NOT NULL REFERENCES orgs (org_id),
    root       TEXT NOT NULL,
    digest     TEXT NOT NULL REFERENCES schemas (digest),
    source     TEXT NOT NULL, -- address or file that it was read from
    fetched_ms INTEGER NOT NULL,
    is_current INTEGER NOT NULL,
    PRIMARY KEY (org_id, root, digest)
) STRICT;
CREATE UNIQUE INDEX org_schemas_current ON org_schemas (org_id, root) WHERE is_current;
CREATE INDEX org_schemas_digest ON org_schemas (digest);

CREATE TABLE ruleset_schemas (
    ruleset_id TEXT NOT NULL,
    version    INTEGER NOT NULL,
    root       TEXT NOT NULL,
    digest     TEXT NOT NULL REFERENCES schemas (digest),
    PRIMARY KEY (ruleset_id, version, root),
    FOREIGN KEY (ruleset_id, version) REFERENCES ruleset_versions (ruleset_id, version)
) STRICT;
CREATE INDEX ruleset_schemas_digest ON ruleset_schemas (digest);
