-- Tokens with which proxies enrol themselves. The token itself is not stored: a digest of its 256 random bits finds it.

CREATE TABLE enrolment_tokens (
    token_id    TEXT PRIMARY KEY,
    name        TEXT NOT NULL UNIQUE,
    digest      BLOB NOT NULL UNIQUE,
    uses        INTEGER NOT NULL,           -- number of enrolments that it allows
    used        INTEGER NOT NULL DEFAULT 0, -- number of enrolments so far
    created_ms  INTEGER NOT NULL,
    created_by  TEXT NOT NULL,
    expires_ms  INTEGER NOT NULL,
    rotate_days INTEGER,                    -- age in days at which its proxies renew their keys
    retire_days INTEGER,                    -- days of silence after which its proxies are retired
    revoked_ms  INTEGER
) STRICT;

-- An organisation may be deleted before the token: no proxy can enrol into it then.
CREATE TABLE enrolment_token_orgs (
    token_id TEXT NOT NULL REFERENCES enrolment_tokens,
    org_id   TEXT NOT NULL,
    PRIMARY KEY (token_id, org_id)
) STRICT, WITHOUT ROWID;

ALTER TABLE proxies ADD COLUMN token_id TEXT;     -- token by which the proxy enrolled itself
ALTER TABLE proxies ADD COLUMN enrolment_id TEXT; -- id that the proxy chose for its enrolment
ALTER TABLE proxies ADD COLUMN keys_made_ms INTEGER;                      -- NULL: an earlier release made the keys
ALTER TABLE proxies ADD COLUMN key_used_ms INTEGER;                       -- first call with the current API key
ALTER TABLE proxies ADD COLUMN retired_ms INTEGER;
UPDATE proxies SET key_used_ms = last_seen_ms;
UPDATE proxies SET keys_made_ms = created_ms WHERE secret_version = 1;
CREATE UNIQUE INDEX proxies_enrolled ON proxies (token_id, enrolment_id);

CREATE TRIGGER proxies_retired AFTER UPDATE OF retired_ms ON proxies BEGIN
    UPDATE registry_generation SET generation = generation + 1;
END;

-- The earlier keys of a proxy, while they and the current ones are accepted.
CREATE TABLE ending_keys (
    proxy_id       TEXT PRIMARY KEY REFERENCES proxies,
    api_key_digest BLOB NOT NULL UNIQUE,
    hmac_secret    BLOB NOT NULL,    -- AES-GCM under the master key, bound to proxy_id
    beside_version INTEGER NOT NULL, -- secret_version of the newer keys
    ends_ms        INTEGER NOT NULL
) STRICT;

CREATE TRIGGER ending_keys_added AFTER INSERT ON ending_keys BEGIN
    UPDATE registry_generation SET generation = generation + 1;
END;
CREATE TRIGGER ending_keys_changed AFTER UPDATE ON ending_keys BEGIN
    UPDATE registry_generation SET generation = generation + 1;
END;
CREATE TRIGGER ending_keys_removed AFTER DELETE ON ending_keys BEGIN
    UPDATE registry_generation SET generation = generation + 1;
END;
