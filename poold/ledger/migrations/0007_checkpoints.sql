-- Machines that a task has lost and went on without.
ALTER TABLE tasks ADD COLUMN continued INTEGER NOT NULL DEFAULT 0;

-- Workspaces of tasks at work, as they are in the store: written down when they are there as a whole.
CREATE TABLE checkpoints (
    task        TEXT NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
    number      INTEGER NOT NULL,
    base        INTEGER,                  -- the one that it changes; null: it is whole by itself
    run         INTEGER NOT NULL,         -- of the agent, from 1
    guest_seq   INTEGER NOT NULL,         -- the last of the agent's events that it covers
    steps       INTEGER NOT NULL,         -- that there were then
    commits     INTEGER NOT NULL,
    session     TEXT,                     -- of the agent
    used        TEXT NOT NULL,            -- a JSON object: what that session remembers to have used
    files       INTEGER NOT NULL,
    bytes       INTEGER NOT NULL,         -- in the store
    sha256      TEXT NOT NULL,
    at_ms       INTEGER NOT NULL,
    PRIMARY KEY (task, number)
) STRICT, WITHOUT ROWID;
