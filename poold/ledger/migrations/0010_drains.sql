-- The drain of this host that is under way, if there is one: what was asked for, before anything is done about it.
CREATE TABLE drains (
    id          TEXT PRIMARY KEY,
    begun_ms    INTEGER NOT NULL,
    until_ms    INTEGER NOT NULL,         -- what is not moved by then stays, or is given up
    is_forced   INTEGER NOT NULL,         -- what cannot be moved is given up
    why         TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- The drain that put a sandbox to sleep which ran: it is brought back, by the host that has it then.
ALTER TABLE sandboxes ADD COLUMN wanted TEXT;
CREATE INDEX sandboxes_wanted ON sandboxes (wanted) WHERE wanted IS NOT NULL;
