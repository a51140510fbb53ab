-- The range of the outbox that an index is being given. Until the index has it, the same events are given under the
-- same token, so that an index which takes a range once takes each event once.

CREATE TABLE outbox_ranges (
    index_name     TEXT PRIMARY KEY,
    after_position INTEGER NOT NULL,
    upto_position  INTEGER NOT NULL,
    token          TEXT NOT NULL
) STRICT;
