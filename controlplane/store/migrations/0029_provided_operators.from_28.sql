-- Operators that an identity provider vouches for: identity, roles by group, and until when these are good.

ALTER TABLE operators ADD COLUMN signed_in_ms INTEGER;   -- the last sign-in
ALTER TABLE operators ADD COLUMN issuer TEXT;            -- NULL: a local operator
ALTER TABLE operators ADD COLUMN subject TEXT;           -- what the issuer calls the person, for ever
ALTER TABLE operators ADD COLUMN display_name TEXT;      -- for people to read, never compared
ALTER TABLE operators ADD COLUMN roles_until_ms INTEGER; -- from then on the operator has to sign in again
CREATE UNIQUE INDEX operators_subject ON operators (issuer, subject);

-- An earlier release does not read this table: it lets nobody in by a group, and keeps no role for too long.
CREATE TABLE provided_roles (
    operator_id TEXT NOT NULL REFERENCES operators ON DELETE CASCADE,
    org_id      TEXT NOT NULL,
    role        TEXT NOT NULL CHECK (role IN ('viewer', 'editor', 'admin')),
    mapping     TEXT NOT NULL, -- Name of the table Console.OidcRoles that gives it
    PRIMARY KEY (operator_id, org_id)
) STRICT, WITHOUT ROWID;
