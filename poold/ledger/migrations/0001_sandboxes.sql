-- One row per sandbox that was ever asked for on this host. The environment is not here: it may hold secrets.
CREATE TABLE sandboxes (
    id          TEXT PRIMARY KEY,
    state       TEXT NOT NULL,
    image       TEXT NOT NULL,
    vcpus       INTEGER NOT NULL,
    memory_mb   INTEGER NOT NULL,
    disk_mb     INTEGER NOT NULL,
    metadata    TEXT NOT NULL,            -- a JSON object of strings
    created_ms  INTEGER NOT NULL,
    expires_ms  INTEGER,
    started_ms  INTEGER,
    ended_ms    INTEGER,
    machine     TEXT,                     -- the VM that it claimed
    reason      TEXT                      -- why it is in error, or why it was stopped
) STRICT;

CREATE INDEX sandboxes_by_creation ON sandboxes (created_ms, id);
CREATE INDEX sandboxes_by_state ON sandboxes (state);
