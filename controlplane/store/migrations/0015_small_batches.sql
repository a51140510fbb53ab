-- Blocks of events are compressed, so SQL can't read them: `graphward audit export` writes events as JSON.

DROP VIEW events;

-- Time from which a batch id may be deleted. NULL: stored by an earlier release, which kept ids for seven years.

ALTER TABLE batches ADD COLUMN forget_ms INTEGER;
CREATE INDEX batches_forget ON batches (forget_ms) WHERE forget_ms IS NOT NULL;
DROP INDEX batches_accepted;
CREATE INDEX batches_of_earlier_releases ON batches (accepted_ms) WHERE forget_ms IS NULL;

-- No query uses this index, but each batch had to update it.

DROP INDEX rate_log_time;

-- Increases with every change of proxies or of their content, in any process. Cached data of a generation is
-- valid until the next generation.

CREATE TABLE registry_generation (
    only_row   INTEGER PRIMARY KEY CHECK (only_row = 1),
    generation INTEGER NOT NULL
) STRICT;
INSERT INTO registry_generation VALUES (1, 1);

CREATE TRIGGER orgs_added AFTER INSERT ON orgs BEGIN
    UPDATE registry_generation SET generation = generation + 1;
END;
CREATE TRIGGER orgs_changed AFTER UPDATE ON orgs BEGIN
    UPDATE registry_generation SET generation = generation + 1;
END;
CREATE TRIGGER orgs_removed AFTER DELETE ON orgs BEGIN
    UPDATE registry_generation SET generation = generation + 1;
END;
CREATE TRIGGER proxies_added AFTER INSERT ON proxies BEGIN
    UPDATE registry_generation SET generation = generation + 1;
END;
CREATE TRIGGER proxies_changed AFTER UPDATE OF name, enabled, api_key_digest, hmac_secret ON proxies BEGIN
    UPDATE registry_generation SET generation = generation + 1;
END;
CREATE TRIGGER proxies_removed AFTER DELETE ON proxies BEGIN
    UPDATE registry_generation SET generation = generation + 1;
END;
CREATE TRIGGER proxy_orgs_added AFTER INSERT ON proxy_orgs BEGIN
    UPDATE registry_generation SET generation = generation + 1;
END;
CREATE TRIGGER proxy_orgs_changed AFTER UPDATE ON proxy_orgs BEGIN
    UPDATE registry_generation SET generation = generation + 1;
END;
CREATE TRIGGER proxy_orgs_removed AFTER DELETE ON proxy_orgs BEGIN
    UPDATE registry_generation SET generation = generation + 1;
END;
CREATE TRIGGER rulesets_added AFTER INSERT ON rulesets BEGIN
    UPDATE registry_generation SET generation = generation + 1;
END;
CREATE TRIGGER rulesets_changed AFTER UPDATE ON rulesets BEGIN
    UPDATE registry_generation SET generation = generation + 1;
END;
CREATE TRIGGER rulesets_removed AFTER DELETE ON rulesets BEGIN
    UPDATE registry_generation SET generation = generation + 1;
END;
CREATE TRIGGER ruleset_versions_added AFTER INSERT ON ruleset_versions BEGIN
    UPDATE registry_generation SET generation = generation + 1;
END;
CREATE TRIGGER ruleset_versions_changed AFTER UPDATE ON ruleset_versions BEGIN
    UPDATE registry_generation SET generation = generation + 1;
END;
CREATE TRIGGER ruleset_versions_removed AFTER DELETE ON ruleset_versions BEGIN
    UPDATE registry_generation SET generation = generation + 1;
END;
CREATE TRIGGER apps_added AFTER INSERT ON apps BEGIN
    UPDATE registry_generation SET generation = generation + 1;
END;
CREATE TRIGGER apps_changed AFTER UPDATE ON apps BEGIN
    UPDATE registry_generation SET generation = generation + 1;
END;
CREATE TRIGGER apps_removed AFTER DELETE ON apps BEGIN
    UPDATE registry_generation SET generation = generation + 1;
END;
CREATE TRIGGER app_secrets_added AFTER INSERT ON app_secrets BEGIN
    UPDATE registry_generation SET generation = generation + 1;
END;
CREATE TRIGGER app_secrets_changed AFTER UPDATE ON app_secrets BEGIN
    UPDATE registry_generation SET generation = generation + 1;
END;
CREATE TRIGGER app_secrets_removed AFTER DELETE ON app_secrets BEGIN
    UPDATE registry_generation SET generation = generation + 1;
END;
CREATE TRIGGER stops_added AFTER INSERT ON stops BEGIN
    UPDATE registry_generation SET generation = generation + 1;
END;
CREATE TRIGGER stops_changed AFTER UPDATE ON stops BEGIN
    UPDATE registry_generation SET generation = generation + 1;
END;
CREATE TRIGGER stops_removed AFTER DELETE ON stops BEGIN
    UPDATE registry_generation SET generation = generation + 1;
END;
