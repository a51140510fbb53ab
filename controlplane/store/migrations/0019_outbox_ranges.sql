-- The range of the outbox that an index receives now. Until the index has it, the same events are sent with the
-- same token, so that an index that accepts each range once stores each event once.

CREATE TABLE outbox_ranges (
    index_name     TEXT PRIMARY KEY,
    after_position INTEGER NOT NULL,
    upto_position  INTEGER NOT NULL,
    token          TEXT NOT NULL
) STRICT;
