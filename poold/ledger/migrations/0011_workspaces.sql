-- Workspaces: what a sandbox's files were made from, and where they are saved.
ALTER TABLE sandboxes ADD COLUMN workspace TEXT;  -- a JSON object; null: it has none

-- Workspaces in the store that may have something in them that no version names: looked at when it is due.
CREATE TABLE workspace_sweeps (
    owner       TEXT NOT NULL,            -- empty: a template
    name        TEXT NOT NULL,
    due_ms      INTEGER NOT NULL,
    PRIMARY KEY (owner, name)
) STRICT, WITHOUT ROWID;
