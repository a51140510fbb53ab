-- Indexes for look-ups by name, and of the proxies that serve an organisation.
-- All other keys have an index already: a primary key, or a unique column.

CREATE INDEX rulesets_name ON rulesets (name);
CREATE INDEX apps_name ON apps (name);
CREATE INDEX proxy_orgs_org ON proxy_orgs (org_id);
