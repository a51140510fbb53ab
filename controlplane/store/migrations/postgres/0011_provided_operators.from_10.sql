-- Operators from an identity provider: identity, roles by group, and the end of these roles.

ALTER TABLE operators ADD COLUMN signed_in_ms bigint; -- time of the last sign-in
ALTER TABLE operators ADD COLUMN issuer text COLLATE "C"; -- NULL: a local operator
ALTER TABLE operators ADD COLUMN subject text COLLATE "C"; -- the issuer's permanent identifier of the person
ALTER TABLE operators ADD COLUMN display_name text COLLATE "C"; -- name for display, never compared
ALTER TABLE operators ADD COLUMN roles_until_ms bigint; -- time from which the operator must sign in again

CREATE UNIQUE INDEX operators_subject ON operators (issuer, subject);

-- An earlier release does not read this table, so it grants no roles by group and keeps none too long.
CREATE TABLE provided_roles (
    operator_id text COLLATE "C" NOT NULL REFERENCES operators ON DELETE CASCADE,
    org_id text COLLATE "C" NOT NULL,
    role text COLLATE "C" NOT NULL CHECK (role IN ('viewer', 'editor', 'admin')),
    mapping text COLLATE "C" NOT NULL, -- Name of the table Console.OidcRoles that gives it
    PRIMARY KEY (operator_id, org_id)
);
