-- Local operators that one person of an identity provider may sign in as.

ALTER TABLE operators ADD COLUMN linked_issuer text COLLATE "C"; -- NULL: no person is linked
ALTER TABLE operators ADD COLUMN linked_subject text COLLATE "C"; -- the issuer's permanent identifier of the person
ALTER TABLE operators ADD COLUMN linked_ms bigint;

CREATE UNIQUE INDEX operators_linked ON operators (linked_issuer, linked_subject);
