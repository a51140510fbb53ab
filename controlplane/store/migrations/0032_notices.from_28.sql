-- What operators must know, in the order in which webhooks get it, and what of it lasts.

CREATE TABLE notices (
    position  INTEGER PRIMARY KEY AUTOINCREMENT,
    notice_id TEXT NOT NULL UNIQUE,
    time_ms   INTEGER NOT NULL,
    body      TEXT NOT NULL -- JSON
) STRICT;
CREATE INDEX notices_time ON notices (time_ms);

-- How far notices were made of the operator log.
CREATE TABLE notice_progress (
    source   TEXT PRIMARY KEY,
    position INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What lasts now and was told: its end, and a reminder each day, are told too.
CREATE TABLE notice_conditions (
    condition   TEXT PRIMARY KEY,
    body        TEXT NOT NULL,   -- the newest notice of it, as JSON
    reminded_ms INTEGER NOT NULL -- when that was made
) STRICT, WITHOUT ROWID;
