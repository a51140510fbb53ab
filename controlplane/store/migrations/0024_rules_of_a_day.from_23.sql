-- The rules of a ruleset that were counted on a day are counted as events are stored.

DROP INDEX rule_days_day;
CREATE INDEX rule_days_day ON rule_days (day, ruleset_id);
