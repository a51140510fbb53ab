-- A counter repeats its numbers after a backup was restored. A generation is a random number instead. Halved, so that
-- the triggers of the tables can still add 1.

CREATE TRIGGER registry_generation_changed AFTER UPDATE ON registry_generation BEGIN
    UPDATE registry_generation SET generation = random() / 2;
END;

-- SHA-256 of the content of a version. NULL: applied by an earlier release.

ALTER TABLE ruleset_versions ADD COLUMN digest BLOB;
