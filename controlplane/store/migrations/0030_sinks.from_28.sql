-- Progress of each sink in the order of events, by its name in the settings.

CREATE TABLE sink_cursors (
    sink         TEXT PRIMARY KEY,
    position     INTEGER NOT NULL,           -- position of the last event that the sink has, or does not want
    begun_ms     INTEGER NOT NULL,
    delivered    INTEGER NOT NULL DEFAULT 0, -- number of events that the sink accepted
    delivered_ms INTEGER,                    -- time of the last delivery
    problem      TEXT,                       -- reason why it accepts nothing now
    problem_ms   INTEGER                     -- time since which it accepts nothing
) STRICT;

-- Events that a sink refused permanently. The events themselves stay in the store until their retention ends.
CREATE TABLE dead_letters (
    sink       TEXT NOT NULL,
    position   INTEGER NOT NULL,
    org_id     TEXT NOT NULL,
    refused_ms INTEGER NOT NULL,
    reason     TEXT NOT NULL,              -- reason in the words of the sink
    is_retried INTEGER NOT NULL DEFAULT 0, -- 1: an operator wants it sent again
    PRIMARY KEY (sink, position)
) STRICT, WITHOUT ROWID;
