-- Tokens with which proxies enrol themselves. The token itself is not stored: a digest of its 256 random bits finds it.

CREATE TABLE enrolment_tokens (
    token_id text COLLATE "C" PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    digest bytea NOT NULL UNIQUE,
    uses bigint NOT NULL, -- number of enrolments that it allows
    used bigint NOT NULL DEFAULT 0, -- number of enrolments so far
    created_ms bigint NOT NULL,
    created_by text COLLATE "C" NOT NULL,
    expires_ms bigint NOT NULL,
    rotate_days bigint, -- age in days at which its proxies renew their keys
    retire_days bigint, -- days of silence after which its proxies are retired
    revoked_ms bigint
);

-- An organisation may be deleted before the token: no proxy can enrol into it then.
CREATE TABLE enrolment_token_orgs (
    token_id text COLLATE "C" NOT NULL REFERENCES enrolment_tokens,
    org_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (token_id, org_id)
);

ALTER TABLE proxies ADD COLUMN token_id text COLLATE "C"; -- token by which the proxy enrolled itself
ALTER TABLE proxies ADD COLUMN enrolment_id text COLLATE "C"; -- id that the proxy chose for its enrolment
ALTER TABLE proxies ADD COLUMN keys_made_ms bigint; -- NULL: an earlier release made the keys
ALTER TABLE proxies ADD COLUMN key_used_ms bigint; -- first call with the current API key
ALTER TABLE proxies ADD COLUMN retired_ms bigint;
UPDATE proxies SET key_used_ms = last_seen_ms;
UPDATE proxies SET keys_made_ms = created_ms WHERE secret_version = 1;
CREATE UNIQUE INDEX proxies_enrolled ON proxies (token_id, enrolment_id);

CREATE TRIGGER proxies_retired AFTER UPDATE OF retired_ms ON proxies
    FOR EACH STATEMENT EXECUTE FUNCTION next_registry_generation();

-- The earlier keys of a proxy, while they and the current ones are accepted.
CREATE TABLE ending_keys (
    proxy_id text COLLATE "C" PRIMARY KEY REFERENCES proxies,
    api_key_digest bytea NOT NULL UNIQUE,
    hmac_secret bytea NOT NULL, -- AES-GCM under the master key, bound to proxy_id
    beside_version bigint NOT NULL, -- secret_version of the newer keys
    ends_ms bigint NOT NULL
);

CREATE TRIGGER ending_keys_changed AFTER INSERT OR UPDATE OR DELETE ON ending_keys
    FOR EACH STATEMENT EXECUTE FUNCTION next_registry_generation();
