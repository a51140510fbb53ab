-- Notices for operators, in the order in which webhooks receive them, and lasting conditions.

CREATE TABLE notices (
    position  INTEGER PRIMARY KEY AUTOINCREMENT,
    notice_id TEXT NOT NULL UNIQUE,
    time_ms   INTEGER NOT NULL,
    body      TEXT NOT NULL -- JSON
) STRICT;
CREATE INDEX notices_time ON notices (time_ms);

-- Position in the operator log up to which notices were made.
CREATE TABLE notice_progress (
    source   TEXT PRIMARY KEY,
    position INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Reported conditions that still last. Their end, and a reminder each day, are reported too.
CREATE TABLE notice_conditions (
    condition   TEXT PRIMARY KEY,
    body        TEXT NOT NULL,   -- newest notice of the condition, as JSON
    reminded_ms INTEGER NOT NULL -- time of that notice
) STRICT, WITHOUT ROWID;
