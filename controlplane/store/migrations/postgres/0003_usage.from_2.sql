-- Owner and purpose of an application, and use counts of applications and rules, which grow as events are stored.

ALTER TABLE apps ADD COLUMN owner text COLLATE "C";
ALTER TABLE apps ADD COLUMN note text COLLATE "C";

-- Events that were stored before this time are not counted. 0: all are.
ALTER TABLE orgs ADD COLUMN counted_since_ms bigint NOT NULL DEFAULT 0;
UPDATE orgs SET counted_since_ms = CAST(extract(epoch FROM now()) AS bigint) * 1000;

-- Time of the newest request of each application.
CREATE TABLE app_uses (
    app_id  text COLLATE "C" NOT NULL PRIMARY KEY,
    last_ms bigint NOT NULL
);

-- Requests of each application by day, which is the number of days since 1970.
CREATE TABLE app_days (
    app_id   text COLLATE "C" NOT NULL,
    day      bigint NOT NULL,
    requests bigint NOT NULL,
    PRIMARY KEY (app_id, day)
);
CREATE INDEX app_days_day ON app_days (day);

-- Requests that each rule decided or logged, by day.
CREATE TABLE rule_days (
    ruleset_id text COLLATE "C" NOT NULL,
    rule_id    text COLLATE "C" NOT NULL,
    day        bigint NOT NULL,
    hits       bigint NOT NULL,
    last_ms    bigint NOT NULL,
    PRIMARY KEY (ruleset_id, rule_id, day)
);
CREATE INDEX rule_days_day ON rule_days (day);
