-- Tasks: what a caller wants done by an agent. Nothing was ever written to the tables that had these names.

DROP TABLE steps;
DROP TABLE tasks;

-- One row per task that was ever asked for on this host. What may be a secret is not here: it is in the vault.
CREATE TABLE tasks (
    id          TEXT PRIMARY KEY,
    owner       TEXT NOT NULL,
    state       TEXT NOT NULL,
    phase       TEXT NOT NULL,            -- what its host is about: claim, clone, run, finish, done
    agent       TEXT NOT NULL,
    asked       TEXT NOT NULL,            -- a JSON object: what was asked for, which never changes
    prompt      TEXT NOT NULL,            -- its beginning; the whole of it is in `prompts`, for this row is written often
    prompt_chars INTEGER NOT NULL,
    key_network TEXT,                     -- a policy as JSON: that of the key, of which its sandbox never gets out
    sandbox     TEXT,                     -- the one that it has now, or was to have
    attempts    INTEGER NOT NULL DEFAULT 0, -- sandboxes that were tried
    session     TEXT,                     -- of the agent
    usage       TEXT NOT NULL DEFAULT '{}', -- a JSON object
    wall_ms     INTEGER NOT NULL DEFAULT 0,
    progress    TEXT NOT NULL DEFAULT '{}', -- a JSON object: how far its agent's events are read
    is_held     INTEGER NOT NULL DEFAULT 0 CHECK (is_held IN (0, 1)), -- a caller had it paused
    ending      TEXT,                     -- a JSON object: how it is to end, written down before anything is done about it
    kept        TEXT NOT NULL DEFAULT '{}', -- a JSON object: what of its work is kept so far
    created_ms  INTEGER NOT NULL,
    started_ms  INTEGER,
    ended_ms    INTEGER,
    reason      TEXT,                     -- a JSON object
    result      TEXT                      -- a JSON object
) STRICT;

CREATE INDEX tasks_by_creation ON tasks (created_ms, id);
CREATE INDEX tasks_by_owner ON tasks (owner, created_ms, id);
CREATE INDEX tasks_by_state ON tasks (state);
CREATE INDEX tasks_under_way ON tasks (created_ms, id) WHERE phase <> 'done';
CREATE INDEX tasks_by_sandbox ON tasks (sandbox) WHERE sandbox IS NOT NULL;
CREATE INDEX tasks_by_end ON tasks (ended_ms) WHERE ended_ms IS NOT NULL;

CREATE TABLE prompts (
    task        TEXT PRIMARY KEY REFERENCES tasks (id) ON DELETE CASCADE,
    text        TEXT NOT NULL
) STRICT;

-- What an agent did, one row for each call of a tool.
CREATE TABLE steps (
    task        TEXT NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
    number      INTEGER NOT NULL,
    thought     TEXT,
    tool        TEXT,
    arguments   TEXT NOT NULL,            -- JSON
    output      TEXT,
    output_bytes INTEGER NOT NULL DEFAULT 0,
    output_file TEXT,                     -- where its machine has the whole of it, until that is an artifact or lost
    output_artifact TEXT,
    is_error    INTEGER NOT NULL DEFAULT 0 CHECK (is_error IN (0, 1)),
    started_ms  INTEGER NOT NULL,
    ended_ms    INTEGER,
    input_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    usd         REAL,
    PRIMARY KEY (task, number)
) STRICT;

CREATE INDEX steps_to_fetch ON steps (task, number) WHERE output_file IS NOT NULL;

-- What a task asked a person, and what people told it. An answer is written down before it is delivered.
CREATE TABLE questions (
    task        TEXT NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
    id          TEXT NOT NULL,
    kind        TEXT NOT NULL,            -- question, tool, command, push, spend, host; instruct: nobody asked
    text        TEXT NOT NULL,
    tool        TEXT,
    arguments   TEXT NOT NULL,            -- JSON
    since_ms    INTEGER NOT NULL,
    answer      TEXT,                     -- approve, reject, answer, instruct, withdrawn
    answer_text TEXT,
    answered_ms INTEGER,
    is_done     INTEGER NOT NULL DEFAULT 0 CHECK (is_done IN (0, 1)), -- the answer had its effect
    PRIMARY KEY (task, id)
) STRICT;

CREATE INDEX questions_under_way ON questions (task) WHERE is_done = 0;

-- Files that a task leaves behind. The files themselves are in the store.
CREATE TABLE artifacts (
    task        TEXT NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
    name        TEXT NOT NULL,
    kind        TEXT NOT NULL,
    bytes       INTEGER NOT NULL,
    sha256      TEXT NOT NULL,
    at_ms       INTEGER NOT NULL,
    PRIMARY KEY (task, name)
) STRICT, WITHOUT ROWID;

-- Who is to be told of the end of a task, until they were or it was tried often enough.
CREATE TABLE webhooks (
    id          TEXT PRIMARY KEY,
    task        TEXT NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
    owner       TEXT NOT NULL,
    url         TEXT NOT NULL,
    body        TEXT NOT NULL,            -- a JSON object
    created_ms  INTEGER NOT NULL,
    tries       INTEGER NOT NULL DEFAULT 0,
    due_ms      INTEGER,                  -- when to try next; null when it is over
    why         TEXT                      -- what went wrong the last time
) STRICT;

CREATE INDEX webhooks_by_due ON webhooks (due_ms) WHERE due_ms IS NOT NULL;
CREATE INDEX webhooks_by_task ON webhooks (task);

-- Files of tasks that retention has forgotten and that are still to be removed from the store.
CREATE TABLE forgotten_files (
    task        TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;
