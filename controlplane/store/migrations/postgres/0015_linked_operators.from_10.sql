-- Local operators that one person of an identity provider may sign in as.

ALTER TABLE operators ADD COLUMN linked_issuer text COLLATE "C"; -- NULL: linked to nobody
ALTER TABLE operators ADD COLUMN linked_subject text COLLATE "C"; -- what the issuer calls the person, for ever
ALTER TABLE operators ADD COLUMN linked_ms bigint;

CREATE UNIQUE INDEX operators_linked ON operators (linked_issuer, linked_subject);
