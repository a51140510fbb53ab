-- Which secrets a proxy has: the first, or those that replaced them for the nth time.

ALTER TABLE proxies ADD COLUMN secret_version INTEGER NOT NULL DEFAULT 1;
