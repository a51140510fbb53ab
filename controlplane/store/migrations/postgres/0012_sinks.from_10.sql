-- Progress of each sink in the order of events, by its name in the settings.

CREATE TABLE sink_cursors (
    sink text COLLATE "C" PRIMARY KEY,
    position bigint NOT NULL, -- position of the last event that the sink has, or does not want
    begun_ms bigint NOT NULL,
    delivered bigint NOT NULL DEFAULT 0, -- number of events that the sink accepted
    delivered_ms bigint, -- time of the last delivery
    problem text COLLATE "C", -- reason why it accepts nothing now
    problem_ms bigint -- time since which it accepts nothing
);

-- Events that a sink refused permanently. The events themselves stay in the store until their retention ends.
CREATE TABLE dead_letters (
    sink text COLLATE "C" NOT NULL,
    position bigint NOT NULL,
    org_id text COLLATE "C" NOT NULL,
    refused_ms bigint NOT NULL,
    reason text COLLATE "C" NOT NULL, -- reason in the words of the sink
    is_retried bigint NOT NULL DEFAULT 0, -- 1: an operator wants it sent again
    PRIMARY KEY (sink, position)
);
