-- Changes of rules that wait for a second person.

-- Number of further operators that must approve a change of the active rules: 0 or 1.
ALTER TABLE orgs ADD COLUMN approvals INTEGER NOT NULL DEFAULT 0;

CREATE TABLE proposals (
    proposal_id     TEXT NOT NULL PRIMARY KEY,
    org_id          TEXT NOT NULL REFERENCES orgs (org_id),
    kind            TEXT NOT NULL CHECK (kind IN ('publish', 'rollback', 'bind', 'promote')),
    ruleset_id      TEXT NOT NULL,
    ruleset         TEXT NOT NULL,
    base_version    INTEGER,
    yaml            TEXT,
    to_version      INTEGER,
    app_id          TEXT,
    base_ruleset_id TEXT,
    note            TEXT,
    proposed_by     TEXT NOT NULL,
    proposed_ms     INTEGER NOT NULL,
    state           TEXT NOT NULL CHECK (state IN ('open', 'approved', 'rejected')),
    decided_by      TEXT,
    decided_ms      INTEGER,
    reason          TEXT,
    version         INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX proposals_of_org ON proposals (org_id, state, proposed_ms);
