-- Result of an operation in the operator log, in words: "published hr-sync version 4".

ALTER TABLE operator_log ADD COLUMN result TEXT;
