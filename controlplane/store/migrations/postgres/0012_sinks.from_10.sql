-- How far each sink has come in the order of events, by the name that the settings give it.

CREATE TABLE sink_cursors (
    sink text COLLATE "C" PRIMARY KEY,
    position bigint NOT NULL, -- of the last event that the sink has, or does not want
    begun_ms bigint NOT NULL,
    delivered bigint NOT NULL DEFAULT 0, -- events that the sink took
    delivered_ms bigint, -- when it took the last of them
    problem text COLLATE "C", -- why it takes nothing now
    problem_ms bigint -- since when
);

-- Events that a sink refused for good. The events themselves stay with the others, as long as their retention says.
CREATE TABLE dead_letters (
    sink text COLLATE "C" NOT NULL,
    position bigint NOT NULL,
    org_id text COLLATE "C" NOT NULL,
    refused_ms bigint NOT NULL,
    reason text COLLATE "C" NOT NULL, -- in the words of the sink
    is_retried bigint NOT NULL DEFAULT 0, -- 1: an operator wants it sent again
    PRIMARY KEY (sink, position)
);
