-- Changes of rules that wait for a second person.

-- Number of further operators that must approve a change of the active rules: 0 or 1.
ALTER TABLE orgs ADD COLUMN approvals bigint NOT NULL DEFAULT 0;

CREATE TABLE proposals (
    proposal_id     text COLLATE "C" NOT NULL PRIMARY KEY,
    org_id          text COLLATE "C" NOT NULL REFERENCES orgs (org_id),
    kind            text COLLATE "C" NOT NULL CHECK (kind IN ('publish', 'rollback', 'bind', 'promote')),
    ruleset_id      text COLLATE "C" NOT NULL,
    ruleset         text COLLATE "C" NOT NULL,
    base_version    bigint,
    yaml            text COLLATE "C",
    to_version      bigint,
    app_id          text COLLATE "C",
    base_ruleset_id text COLLATE "C",
    note            text COLLATE "C",
    proposed_by     text COLLATE "C" NOT NULL,
    proposed_ms     bigint NOT NULL,
    state           text COLLATE "C" NOT NULL CHECK (state IN ('open', 'approved', 'rejected')),
    decided_by      text COLLATE "C",
    decided_ms      bigint,
    reason          text COLLATE "C",
    version         bigint
);
CREATE INDEX proposals_of_org ON proposals (org_id, state, proposed_ms);
