-- Hibernation: sandboxes whose machine is in the object store.

ALTER TABLE sandboxes ADD COLUMN hibernate_sec INTEGER;
ALTER TABLE sandboxes ADD COLUMN hibernated TEXT;  -- a JSON object, while it hibernates: where it is in the store
ALTER TABLE rules ADD COLUMN hibernate_sec INTEGER;

-- What may be in the store and belongs to nobody: written down before it is put there, and when nobody needs it more.
CREATE TABLE store_leftovers (
    prefix      TEXT PRIMARY KEY,
    since_ms    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
