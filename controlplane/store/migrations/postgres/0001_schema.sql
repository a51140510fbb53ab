-- All tables of the store, as in SQLite. Texts are compared byte by byte, as in SQLite (COLLATE "C").

-- Positions of events. A batch takes all of its positions at once.
CREATE SEQUENCE positions;

-- Returns the first of so many consecutive positions. A transaction that takes positions holds the lock `holders`,
-- shared, until it ends: readers check this lock. The lock `taking` ends with the inner block, which is
-- always rolled back; the sequence is not.
CREATE FUNCTION take_positions(how_many bigint, holders bigint, taking bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    first bigint;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(holders);
    BEGIN
        PERFORM pg_advisory_xact_lock(taking);
        first := nextval('positions');
        PERFORM setval('positions', first + how_many - 1);
        RAISE EXCEPTION USING ERRCODE = 'GW001';
    EXCEPTION WHEN SQLSTATE 'GW001' THEN
        RETURN first;
    END;
END
$$;

CREATE TABLE orgs (
    org_id text COLLATE "C" PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    retention text COLLATE "C" NOT NULL CHECK (retention IN ('base', '90d', '1y', '7y')),
    created_ms bigint NOT NULL
);

CREATE TABLE proxies (
    proxy_id text COLLATE "C" PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    api_key_digest bytea NOT NULL UNIQUE,
    hmac_secret bytea NOT NULL, -- AES-GCM under the master key, bound to proxy_id
    enabled bigint NOT NULL DEFAULT 1,
    created_ms bigint NOT NULL,
    last_seen_ms bigint,
    secret_version bigint NOT NULL DEFAULT 1,
    heard_ms bigint,
    said text COLLATE "C" CHECK (said IN ('ok', 'degraded', 'failed'))
);

CREATE TABLE proxy_orgs (
    proxy_id text COLLATE "C" NOT NULL REFERENCES proxies,
    org_id text COLLATE "C" NOT NULL REFERENCES orgs,
    PRIMARY KEY (proxy_id, org_id)
);

CREATE TABLE rulesets (
    ruleset_id text COLLATE "C" PRIMARY KEY,
    org_id text COLLATE "C" NOT NULL REFERENCES orgs,
    name text COLLATE "C" NOT NULL,
    created_ms bigint NOT NULL,
    UNIQUE (org_id, name)
);

CREATE TABLE ruleset_versions (
    ruleset_id text COLLATE "C" NOT NULL REFERENCES rulesets,
    version bigint NOT NULL,
    yaml text COLLATE "C" NOT NULL,
    rule_count bigint NOT NULL,
    rolled_back_to bigint,
    created_ms bigint NOT NULL,
    note text COLLATE "C",
    PRIMARY KEY (ruleset_id, version)
);

CREATE TABLE apps (
    app_id text COLLATE "C" PRIMARY KEY,
    org_id text COLLATE "C" NOT NULL REFERENCES orgs,
    name text COLLATE "C" NOT NULL,
    client_id text COLLATE "C" NOT NULL UNIQUE,
    ruleset_id text COLLATE "C" NOT NULL REFERENCES rulesets,
    enabled bigint NOT NULL DEFAULT 1,
    created_ms bigint NOT NULL,
    shadow_ruleset_id text COLLATE "C" REFERENCES rulesets,
    UNIQUE (org_id, name)
);

CREATE TABLE app_secrets (
    app_id text COLLATE "C" NOT NULL REFERENCES apps,
    version bigint NOT NULL,
    hash text COLLATE "C" NOT NULL,
    expires_ms bigint,
    created_ms bigint NOT NULL,
    PRIMARY KEY (app_id, version)
);

CREATE TABLE sync_state (
    proxy_id text COLLATE "C" PRIMARY KEY REFERENCES proxies,
    digest bytea NOT NULL,
    version bigint NOT NULL,
    generated_ms bigint NOT NULL
);

CREATE TABLE master_key_check (
    only_row bigint PRIMARY KEY CHECK (only_row = 1),
    sealed bytea NOT NULL
);

CREATE TABLE batches (
    proxy_id text COLLATE "C" NOT NULL,
    batch bytea NOT NULL,
    accepted_ms bigint NOT NULL,
    accepted bigint NOT NULL,
    content bytea,
    forget_ms bigint, -- time from which the id need not be kept; NULL: stored by a release that kept ids for years
    PRIMARY KEY (proxy_id, batch)
);

CREATE INDEX batches_forget ON batches (forget_ms) WHERE forget_ms IS NOT NULL;

CREATE INDEX batches_of_earlier_releases ON batches (accepted_ms) WHERE forget_ms IS NULL;

CREATE TABLE rate_log (
    accepted_ms bigint NOT NULL,
    proxy_id text COLLATE "C" NOT NULL,
    org_id text COLLATE "C" NOT NULL
);

CREATE INDEX rate_log_proxy ON rate_log (proxy_id, accepted_ms);

CREATE INDEX rate_log_org ON rate_log (org_id, accepted_ms);

CREATE TABLE outbox_cursor (
    index_name text COLLATE "C" PRIMARY KEY,
    position bigint NOT NULL
);

CREATE TABLE sequences (
    proxy_id text COLLATE "C" NOT NULL,
    org_id text COLLATE "C" NOT NULL,
    highest bigint NOT NULL,
    unlisted bigint NOT NULL,
    repeated bigint NOT NULL DEFAULT 0,
    repeated_ms bigint, -- missing numbers beyond the ranges that are kept
    PRIMARY KEY (proxy_id, org_id)
);

CREATE TABLE sequence_gaps (
    proxy_id text COLLATE "C" NOT NULL,
    org_id text COLLATE "C" NOT NULL,
    first bigint NOT NULL,
    last bigint NOT NULL,
    PRIMARY KEY (proxy_id, org_id, first)
);

CREATE TABLE heartbeats (
    proxy_id text COLLATE "C" NOT NULL,
    received_ms bigint NOT NULL,
    body text COLLATE "C" NOT NULL,
    skew_ms bigint,
    PRIMARY KEY (proxy_id, received_ms)
);

CREATE TABLE metrics (
    proxy_id text COLLATE "C" NOT NULL,
    window_start text COLLATE "C" NOT NULL,
    received_ms bigint NOT NULL,
    body text COLLATE "C" NOT NULL,
    PRIMARY KEY (proxy_id, window_start)
);

CREATE INDEX metrics_received ON metrics (proxy_id, received_ms);

CREATE TABLE blocks (
    position bigint PRIMARY KEY, -- position of the first event; the others follow it
    count bigint NOT NULL, -- number of events of the array, including purged ones (null)
    org_id text COLLATE "C" NOT NULL,
    proxy_id text COLLATE "C" NOT NULL,
    least_ms bigint NOT NULL, -- lower and upper bound of the times of its events
    most_ms bigint NOT NULL,
    body bytea NOT NULL -- JSON array, each event byte for byte as received
);

ALTER TABLE blocks ALTER COLUMN body SET STORAGE EXTERNAL;

CREATE INDEX blocks_time ON blocks (org_id, least_ms, position);

CREATE TABLE event_ids (
    org_id text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    block bigint NOT NULL, -- position of the block
    PRIMARY KEY (org_id, id)
);

CREATE TABLE operators (
    operator_id text COLLATE "C" PRIMARY KEY,
    name text COLLATE "C" NOT NULL,
    password_hash text COLLATE "C", -- argon2id; null if the operator has no password
    enabled bigint NOT NULL DEFAULT 1,
    created_ms bigint NOT NULL
);

CREATE UNIQUE INDEX operators_name ON operators (lower(name));

CREATE TABLE operator_roles (
    operator_id text COLLATE "C" NOT NULL REFERENCES operators,
    org_id text COLLATE "C" NOT NULL,
    role text COLLATE "C" NOT NULL CHECK (role IN ('viewer', 'editor', 'admin')),
    PRIMARY KEY (operator_id, org_id)
);

CREATE TABLE operator_sessions (
    digest bytea PRIMARY KEY,
    operator_id text COLLATE "C" NOT NULL REFERENCES operators,
    created_ms bigint NOT NULL,
    used_ms bigint NOT NULL
);

CREATE INDEX operator_sessions_operator ON operator_sessions (operator_id);

CREATE TABLE operator_tokens (
    token_id text COLLATE "C" PRIMARY KEY,
    operator_id text COLLATE "C" NOT NULL REFERENCES operators,
    name text COLLATE "C" NOT NULL,
    digest bytea NOT NULL UNIQUE,
    created_ms bigint NOT NULL,
    expires_ms bigint NOT NULL,
    UNIQUE (operator_id, name)
);

CREATE TABLE operator_log (
    position bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    time_ms bigint NOT NULL,
    operator text COLLATE "C" NOT NULL,
    address text COLLATE "C" NOT NULL,
    operation text COLLATE "C" NOT NULL,
    request text COLLATE "C" NOT NULL, -- JSON with masked secrets
    org_ids text COLLATE "C" NOT NULL, -- JSON array: the organisations that the operation affected
    outcome text COLLATE "C", -- 'done', or the code of the refusal
    instance_id text COLLATE "C"
);

CREATE INDEX operator_log_time ON operator_log (time_ms);

CREATE TABLE chain (
    org_id text COLLATE "C" NOT NULL,
    number bigint NOT NULL, -- number of the link in its organisation: 1, 2, 3, ...
    kind text COLLATE "C" NOT NULL CHECK (kind IN ('block', 'adopted', 'purge')),
    chained_ms bigint NOT NULL,
    position bigint NOT NULL, -- position of the block
    count bigint NOT NULL, -- number of events that were received, or that were purged
    proxy_id text COLLATE "C" NOT NULL,
    batch bytea NOT NULL, -- digest of the batch, as in the table batches
    content bytea NOT NULL, -- for a block: SHA-256 of its events' digests; for a purge: the purged events
    link bytea NOT NULL, -- SHA-256 of the previous link and all columns above
    mac bytea, -- MAC of the link, with a key that is derived from the master key
    PRIMARY KEY (org_id, number)
);

CREATE INDEX chain_purges ON chain (org_id, position) WHERE kind = 'purge';

CREATE TABLE event_digests (
    position bigint PRIMARY KEY, -- position of the block
    digests bytea NOT NULL
);

CREATE INDEX blocks_of_org ON blocks (org_id, position);

CREATE TABLE chain_checks (
    org_id text COLLATE "C" PRIMARY KEY,
    checked_ms bigint NOT NULL,
    links bigint NOT NULL,
    events bigint NOT NULL,
    misfit text COLLATE "C" -- the first mismatch as JSON; null if there is none
);

CREATE TABLE stops (
    org_id text COLLATE "C" NOT NULL,
    app_id text COLLATE "C" NOT NULL,
    reason text COLLATE "C" NOT NULL,
    stopped_by text COLLATE "C" NOT NULL,
    stopped_ms bigint NOT NULL,
    PRIMARY KEY (org_id, app_id)
);

CREATE TABLE receipts (
    position bigint PRIMARY KEY, -- position of the block
    org_id text COLLATE "C" NOT NULL,
    received_ms bigint NOT NULL
);

CREATE INDEX receipts_of_org ON receipts (org_id, received_ms, position);

CREATE INDEX chain_blocks ON chain (org_id, position) WHERE kind <> 'purge';

CREATE TABLE implausible_times (
    proxy_id text COLLATE "C" NOT NULL,
    org_id text COLLATE "C" NOT NULL,
    count bigint NOT NULL,
    latest_ms bigint NOT NULL, -- time of the last of these
    PRIMARY KEY (proxy_id, org_id)
);

CREATE TABLE acknowledged_losses (
    proxy_id text COLLATE "C" NOT NULL,
    org_id text COLLATE "C" NOT NULL,
    seq bigint NOT NULL, -- missing numbers up to this one
    unlisted bigint NOT NULL, -- number of acknowledged missing numbers outside the ranges
    repeated bigint NOT NULL, -- number of acknowledged events with duplicate sequence numbers
    implausible bigint NOT NULL, -- number of acknowledged events with implausible times
    acknowledged_ms bigint NOT NULL,
    acknowledged_by text COLLATE "C" NOT NULL,
    note text COLLATE "C" NOT NULL,
    PRIMARY KEY (proxy_id, org_id)
);

CREATE TABLE reused_batch_ids (
    proxy_id text COLLATE "C" NOT NULL,
    org_id text COLLATE "C" NOT NULL,
    count bigint NOT NULL,
    latest_ms bigint NOT NULL,
    PRIMARY KEY (proxy_id, org_id)
);

CREATE INDEX rulesets_name ON rulesets (name);

CREATE INDEX apps_name ON apps (name);

CREATE INDEX proxy_orgs_org ON proxy_orgs (org_id);

CREATE TABLE schemas (
    digest text COLLATE "C" PRIMARY KEY,
    packed bytea NOT NULL, -- the flat form, compressed
    bytes bigint NOT NULL -- size of the flat form
);

CREATE TABLE org_schemas (
    org_id text COLLATE "C" NOT NULL REFERENCES orgs (org_id),
    root text COLLATE "C" NOT NULL,
    digest text COLLATE "C" NOT NULL REFERENCES schemas (digest),
    source text COLLATE "C" NOT NULL, -- address or file that it was read from
    fetched_ms bigint NOT NULL,
    is_current bigint NOT NULL,
    PRIMARY KEY (org_id, root, digest)
);

CREATE UNIQUE INDEX org_schemas_current ON org_schemas (org_id, root) WHERE is_current = 1;

CREATE INDEX org_schemas_digest ON org_schemas (digest);

CREATE TABLE ruleset_schemas (
    ruleset_id text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    root text COLLATE "C" NOT NULL,
    digest text COLLATE "C" NOT NULL REFERENCES schemas (digest),
    PRIMARY KEY (ruleset_id, version, root),
    FOREIGN KEY (ruleset_id, version) REFERENCES ruleset_versions (ruleset_id, version)
);

CREATE INDEX ruleset_schemas_digest ON ruleset_schemas (digest);

CREATE TABLE sign_in_attempts (
    attempt_id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    failed_ms bigint NOT NULL,
    address bytea NOT NULL,
    name bytea, -- null if the sign-in gave no name
    pair bytea -- name and address; null if the name has signed in from there since
);

CREATE INDEX sign_in_attempts_time ON sign_in_attempts (failed_ms);

CREATE INDEX sign_in_attempts_address ON sign_in_attempts (address, failed_ms);

CREATE INDEX sign_in_attempts_name ON sign_in_attempts (name, failed_ms);

CREATE INDEX sign_in_attempts_pair ON sign_in_attempts (pair, failed_ms);

CREATE TABLE instances (
    instance_id text COLLATE "C" PRIMARY KEY,
    name text COLLATE "C" NOT NULL, -- host and process
    version text COLLATE "C" NOT NULL,
    started_ms bigint NOT NULL,
    seen_ms bigint NOT NULL,
    leads bigint NOT NULL, -- 1: it runs the jobs that only one control plane may run
    witnessed_ms bigint -- newest time that the clocks of its proxies confirmed
);

CREATE TABLE enforced_versions (
    proxy_id text COLLATE "C" NOT NULL,
    ruleset_id text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    PRIMARY KEY (proxy_id, ruleset_id)
);

CREATE INDEX enforced_versions_ruleset ON enforced_versions (ruleset_id, version);

CREATE INDEX apps_ruleset ON apps (ruleset_id);

CREATE TABLE outbox_ranges (
    index_name text COLLATE "C" PRIMARY KEY,
    after_position bigint NOT NULL,
    upto_position bigint NOT NULL,
    token text COLLATE "C" NOT NULL
);

-- Increases with every change of proxies or of their content, in any process. Cached data of
-- a generation is valid until the next.
CREATE TABLE registry_generation (
    only_row bigint PRIMARY KEY CHECK (only_row = 1),
    generation bigint NOT NULL
);

INSERT INTO registry_generation (only_row, generation) VALUES (1, 1);

CREATE FUNCTION next_registry_generation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE registry_generation SET generation = generation + 1;
    RETURN NULL;
END
$$;

CREATE TRIGGER orgs_changed AFTER INSERT OR UPDATE OR DELETE ON orgs
    FOR EACH STATEMENT EXECUTE FUNCTION next_registry_generation();

CREATE TRIGGER proxies_changed AFTER INSERT OR DELETE OR
    UPDATE OF name, enabled, api_key_digest, hmac_secret ON proxies
    FOR EACH STATEMENT EXECUTE FUNCTION next_registry_generation();

CREATE TRIGGER proxy_orgs_changed AFTER INSERT OR UPDATE OR DELETE ON proxy_orgs
    FOR EACH STATEMENT EXECUTE FUNCTION next_registry_generation();

CREATE TRIGGER rulesets_changed AFTER INSERT OR UPDATE OR DELETE ON rulesets
    FOR EACH STATEMENT EXECUTE FUNCTION next_registry_generation();

CREATE TRIGGER ruleset_versions_changed AFTER INSERT OR UPDATE OR DELETE ON ruleset_versions
    FOR EACH STATEMENT EXECUTE FUNCTION next_registry_generation();

CREATE TRIGGER apps_changed AFTER INSERT OR UPDATE OR DELETE ON apps
    FOR EACH STATEMENT EXECUTE FUNCTION next_registry_generation();

CREATE TRIGGER app_secrets_changed AFTER INSERT OR UPDATE OR DELETE ON app_secrets
    FOR EACH STATEMENT EXECUTE FUNCTION next_registry_generation();

CREATE TRIGGER stops_changed AFTER INSERT OR UPDATE OR DELETE ON stops
    FOR EACH STATEMENT EXECUTE FUNCTION next_registry_generation();
