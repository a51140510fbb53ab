-- Index to count the rules of a ruleset on a day, which happens as events are stored.

DROP INDEX rule_days_day;
CREATE INDEX rule_days_day ON rule_days (day, ruleset_id);
