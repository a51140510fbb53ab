-- Credentials of applications other than client secrets, and the last use of each credential.

-- Versions of secrets below this one are revoked, even if no secret has this version.
ALTER TABLE apps ADD COLUMN secret_floor bigint NOT NULL DEFAULT 0;
-- Uses of credentials before this time were not recorded. 0: all were.
ALTER TABLE apps ADD COLUMN uses_since_ms bigint NOT NULL DEFAULT 0;
UPDATE apps SET uses_since_ms = CAST(extract(epoch FROM now()) AS bigint) * 1000;

CREATE TABLE app_credentials (
    credential_id text COLLATE "C" NOT NULL PRIMARY KEY,
    app_id        text COLLATE "C" NOT NULL REFERENCES apps (app_id) ON DELETE CASCADE,
    kind          text COLLATE "C" NOT NULL,    -- 'federated', 'publicKey' or 'certificate'
    identity      text COLLATE "C" NOT NULL,    -- unique among the credentials of one kind of an application
    pins          text COLLATE "C" NOT NULL,    -- the members that proxies receive, as JSON
    created_ms    bigint NOT NULL,
    ends_ms       bigint,                       -- end of its validity; null: none
    UNIQUE (app_id, kind, identity)
);
CREATE TRIGGER app_credentials_changed AFTER INSERT OR UPDATE OR DELETE ON app_credentials
    FOR EACH STATEMENT EXECUTE FUNCTION next_registry_generation();

-- Time of the newest token by credential. An empty id: the proxy did not report the credential.
CREATE TABLE credential_uses (
    app_id        text COLLATE "C" NOT NULL REFERENCES apps (app_id) ON DELETE CASCADE,
    credential_id text COLLATE "C" NOT NULL,
    last_ms       bigint NOT NULL,
    PRIMARY KEY (app_id, credential_id)
);
