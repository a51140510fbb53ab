-- Organisations, proxies, applications and rulesets, which operators create.

CREATE TABLE orgs (
    org_id     TEXT PRIMARY KEY,
    name       TEXT NOT NULL UNIQUE,
    retention  TEXT NOT NULL CHECK (retention IN ('base', '90d', '1y', '7y')),
    created_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE proxies (
    proxy_id       TEXT PRIMARY KEY,
    name           TEXT NOT NULL UNIQUE,
    api_key_digest BLOB NOT NULL UNIQUE,
    hmac_secret    BLOB NOT NULL,          -- AES-GCM under the master key, bound to proxy_id
    enabled        INTEGER NOT NULL DEFAULT 1,
    created_ms     INTEGER NOT NULL,
    last_seen_ms   INTEGER
) STRICT;

CREATE TABLE proxy_orgs (
    proxy_id TEXT NOT NULL REFERENCES proxies,
    org_id   TEXT NOT NULL REFERENCES orgs,
    PRIMARY KEY (proxy_id, org_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE rulesets (
    ruleset_id TEXT PRIMARY KEY,
    org_id     TEXT NOT NULL REFERENCES orgs,
    name       TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    UNIQUE (org_id, name)
) STRICT;

-- The active version is the highest one. A rollback is a new version with an old text.
CREATE TABLE ruleset_versions (
    ruleset_id TEXT NOT NULL REFERENCES rulesets,
    version    INTEGER NOT NULL,
    yaml       TEXT NOT NULL,
    rule_count INTEGER NOT NULL,
    rolled_back_to INTEGER,
    created_ms INTEGER NOT NULL,
    PRIMARY KEY (ruleset_id, version)
) STRICT;

CREATE TABLE apps (
    app_id     TEXT PRIMARY KEY,
    org_id     TEXT NOT NULL REFERENCES orgs,
    name       TEXT NOT NULL,
    client_id  TEXT NOT NULL UNIQUE,
    ruleset_id TEXT NOT NULL REFERENCES rulesets,
    enabled    INTEGER NOT NULL DEFAULT 1,
    created_ms INTEGER NOT NULL,
    UNIQUE (org_id, name)
) STRICT;

-- A secret is valid until expires_ms, or for ever if that is null.
CREATE TABLE app_secrets (
    app_id     TEXT NOT NULL REFERENCES apps,
    version    INTEGER NOT NULL,
    hash       TEXT NOT NULL,
    expires_ms INTEGER,
    created_ms INTEGER NOT NULL,
    PRIMARY KEY (app_id, version)
) STRICT, WITHOUT ROWID;

-- The content that a proxy last received by sync. Its version increases with every change of this content, and
-- generated_ms never goes back, even if the clock of the host does.
CREATE TABLE sync_state (
    proxy_id     TEXT PRIMARY KEY REFERENCES proxies,
    digest       BLOB NOT NULL,
    version      INTEGER NOT NULL,
    generated_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- A text sealed with the master key, so that a start with another key is detected before the first request.
CREATE TABLE master_key_check (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    sealed   BLOB NOT NULL
) STRICT;
