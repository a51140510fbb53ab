-- A counter repeats its numbers after a backup was restored, or after a standby without the newest changes took
-- over. A generation is a random number instead.

CREATE OR REPLACE FUNCTION next_registry_generation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE registry_generation
        SET generation = CAST(CAST('x' || right(CAST(gen_random_uuid() AS text), 12) AS bit(48)) AS bigint);
    RETURN NULL;
END
$$;

-- SHA-256 of the content of a version. NULL: applied by an earlier release.

ALTER TABLE ruleset_versions ADD COLUMN digest bytea;
