-- Credentials of applications other than client secrets, and the last use of each credential.

-- Versions of secrets below this one are revoked, even if no secret has this version.
ALTER TABLE apps ADD COLUMN secret_floor INTEGER NOT NULL DEFAULT 0;
-- Uses of credentials before this time were not recorded. 0: all were.
ALTER TABLE apps ADD COLUMN uses_since_ms INTEGER NOT NULL DEFAULT 0;
UPDATE apps SET uses_since_ms = CAST(strftime('%s', 'now') AS INTEGER) * 1000;

CREATE TABLE app_credentials (
    credential_id TEXT NOT NULL PRIMARY KEY,
    app_id        TEXT NOT NULL REFERENCES apps (app_id) ON DELETE CASCADE,
    kind          TEXT NOT NULL,    -- 'federated', 'publicKey' or 'certificate'
    identity      TEXT NOT NULL,    -- unique among the credentials of one kind of an application
    pins          TEXT NOT NULL,    -- the members that proxies receive, as JSON
    created_ms    INTEGER NOT NULL,
    ends_ms       INTEGER,          -- end of its validity; null: none
    UNIQUE (app_id, kind, identity)
) STRICT, WITHOUT ROWID;
CREATE TRIGGER app_credentials_added AFTER INSERT ON app_credentials BEGIN
    UPDATE registry_generation SET generation = generation + 1;
END;
CREATE TRIGGER app_credentials_changed AFTER UPDATE ON app_credentials BEGIN
    UPDATE registry_generation SET generation = generation + 1;
END;
CREATE TRIGGER app_credentials_removed AFTER DELETE ON app_credentials BEGIN
    UPDATE registry_generation SET generation = generation + 1;
END;

-- Time of the newest token by credential. An empty id: the proxy did not report the credential.
CREATE TABLE credential_uses (
    app_id        TEXT NOT NULL REFERENCES apps (app_id) ON DELETE CASCADE,
    credential_id TEXT NOT NULL,
    last_ms       INTEGER NOT NULL,
    PRIMARY KEY (app_id, credential_id)
) STRICT, WITHOUT ROWID;
