-- Version of a proxy's secrets, which increases with each replacement.

ALTER TABLE proxies ADD COLUMN secret_version INTEGER NOT NULL DEFAULT 1;
