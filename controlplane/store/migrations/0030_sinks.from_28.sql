-- How far each sink has come in the order of events, by the name that the settings give it.

CREATE TABLE sink_cursors (
    sink         TEXT PRIMARY KEY,
    position     INTEGER NOT NULL,           -- of the last event that the sink has, or does not want
    begun_ms     INTEGER NOT NULL,
    delivered    INTEGER NOT NULL DEFAULT 0, -- events that the sink took
    delivered_ms INTEGER,                    -- when it took the last of them
    problem      TEXT,                       -- why it takes nothing now
    problem_ms   INTEGER                     -- since when
) STRICT;

-- Events that a sink refused for good. The events themselves stay with the others, as long as their retention says.
CREATE TABLE dead_letters (
    sink       TEXT NOT NULL,
    position   INTEGER NOT NULL,
    org_id     TEXT NOT NULL,
    refused_ms INTEGER NOT NULL,
    reason     TEXT NOT NULL,              -- in the words of the sink
    is_retried INTEGER NOT NULL DEFAULT 0, -- 1: an operator wants it sent again
    PRIMARY KEY (sink, position)
) STRICT, WITHOUT ROWID;
