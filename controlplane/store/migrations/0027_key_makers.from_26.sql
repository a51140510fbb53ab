-- Maker of the current keys of a proxy, and number of new keys that were made and never used.

ALTER TABLE proxies ADD COLUMN key_maker TEXT;            -- 'enrolment' or 'renewal'
ALTER TABLE proxies ADD COLUMN key_maker_version INTEGER; -- secret_version of its keys; an operator made any later ones
ALTER TABLE proxies ADD COLUMN key_repeats INTEGER NOT NULL DEFAULT 0; -- consecutive replacements of unused keys
ALTER TABLE proxies ADD COLUMN renewal_signed_s INTEGER;  -- X-Timestamp of the newest renewal
UPDATE proxies SET key_maker = 'enrolment', key_maker_version = 1 WHERE token_id IS NOT NULL;
