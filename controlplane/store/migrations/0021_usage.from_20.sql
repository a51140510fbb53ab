-- Owner and purpose of an application, and use counts of applications and rules, which grow as events are stored.

ALTER TABLE apps ADD COLUMN owner TEXT;
ALTER TABLE apps ADD COLUMN note TEXT;

-- Events that were stored before this time are not counted. 0: all are.
ALTER TABLE orgs ADD COLUMN counted_since_ms INTEGER NOT NULL DEFAULT 0;
UPDATE orgs SET counted_since_ms = CAST(strftime('%s', 'now') AS INTEGER) * 1000;

-- Time of the newest request of each application.
CREATE TABLE app_uses (
    app_id  TEXT NOT NULL PRIMARY KEY,
    last_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Requests of each application by day, which is the number of days since 1970.
CREATE TABLE app_days (
    app_id   TEXT NOT NULL,
    day      INTEGER NOT NULL,
    requests INTEGER NOT NULL,
    PRIMARY KEY (app_id, day)
) STRICT, WITHOUT ROWID;
CREATE INDEX app_days_day ON app_days (day);

-- Requests that each rule decided or logged, by day.
CREATE TABLE rule_days (
    ruleset_id TEXT NOT NULL,
    rule_id    TEXT NOT NULL,
    day        INTEGER NOT NULL,
    hits       INTEGER NOT NULL,
    last_ms    INTEGER NOT NULL,
    PRIMARY KEY (ruleset_id, rule_id, day)
) STRICT, WITHOUT ROWID;
CREATE INDEX rule_days_day ON rule_days (day);
