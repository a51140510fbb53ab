-- A look-up by name, and of the proxies that serve an organisation, reads an index and not every row.
-- All other keys have an index of their own: a primary key, or a column that is unique.

CREATE INDEX rulesets_name ON rulesets (name);
CREATE INDEX apps_name ON apps (name);
CREATE INDEX proxy_orgs_org ON proxy_orgs (org_id);
