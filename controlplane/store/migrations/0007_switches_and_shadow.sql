-- Active emergency stops, and the shadow ruleset of an application.

-- Stop of an application, of an organisation (app_id is '') or of everything (both are ''), until it is lifted.
CREATE TABLE stops (
    org_id     TEXT NOT NULL,
    app_id     TEXT NOT NULL,
    reason     TEXT NOT NULL,
    stopped_by TEXT NOT NULL,
    stopped_ms INTEGER NOT NULL,
    PRIMARY KEY (org_id, app_id)
) STRICT, WITHOUT ROWID;

ALTER TABLE apps ADD COLUMN shadow_ruleset_id TEXT REFERENCES rulesets;
