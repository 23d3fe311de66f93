-- Everything that happened, beside everything that is: state and history change in one transaction.

ALTER TABLE sandboxes ADD COLUMN owner TEXT NOT NULL DEFAULT 'local';
ALTER TABLE sandboxes ADD COLUMN generation INTEGER NOT NULL DEFAULT 1;  -- how often its machine was told who it is
ALTER TABLE sandboxes ADD COLUMN timeout_sec INTEGER NOT NULL DEFAULT 3600;
ALTER TABLE sandboxes ADD COLUMN on_timeout TEXT NOT NULL DEFAULT 'destroy' CHECK (on_timeout IN ('pause', 'destroy'));
ALTER TABLE sandboxes ADD COLUMN idle_sec INTEGER;
ALTER TABLE sandboxes ADD COLUMN paused_sec INTEGER;
ALTER TABLE sandboxes ADD COLUMN auto_resume INTEGER NOT NULL DEFAULT 0 CHECK (auto_resume IN (0, 1));
ALTER TABLE sandboxes ADD COLUMN paused_ms INTEGER;  -- since when; kept while it is being resumed, gone when it runs or ends

UPDATE sandboxes SET timeout_sec = max(1, (expires_ms - created_ms) / 1000) WHERE expires_ms IS NOT NULL;

CREATE INDEX sandboxes_by_end ON sandboxes (ended_ms) WHERE ended_ms IS NOT NULL;

-- What a client can follow. A stream (a sandbox's id, for example) is numbered from 1 without gaps; `id` numbers all of them
-- together and is never given twice.
CREATE TABLE events (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    stream      TEXT NOT NULL,
    seq         INTEGER NOT NULL,
    at_ms       INTEGER NOT NULL,
    kind        TEXT NOT NULL,
    data        TEXT NOT NULL,            -- a JSON object
    guest_seq   INTEGER,                  -- the guest's own number, for what a guest told us: the same one is kept once
    UNIQUE (stream, seq)
) STRICT;

CREATE UNIQUE INDEX events_by_guest ON events (stream, guest_seq) WHERE guest_seq IS NOT NULL;

-- Streams whose owner is gone and whose events retention is about to remove, a batch at a time.
CREATE TABLE forgotten (
    stream      TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

CREATE TRIGGER events_are_final BEFORE UPDATE ON events
BEGIN SELECT RAISE(ABORT, 'an event is never changed'); END;

CREATE TRIGGER events_stay BEFORE DELETE ON events WHEN NOT EXISTS (SELECT 1 FROM forgotten WHERE stream = old.stream)
BEGIN SELECT RAISE(ABORT, 'only the events of a forgotten stream are removed'); END;

-- Who did what to what. Each row's hash covers the hash before it and the row itself.
CREATE TABLE audit (
    seq         INTEGER PRIMARY KEY,
    at_ms       INTEGER NOT NULL,
    owner       TEXT NOT NULL,
    sandbox     TEXT,
    request     TEXT,                     -- the id of the request that asked for it
    action      TEXT NOT NULL,
    detail      TEXT NOT NULL,            -- a JSON object
    exit_code   INTEGER,
    duration_ms INTEGER,
    bytes       INTEGER,
    hash        BLOB NOT NULL
) STRICT;

-- An index ends with the row's own number, so each of these lists in the order of `seq`.
CREATE INDEX audit_by_sandbox ON audit (sandbox) WHERE sandbox IS NOT NULL;
CREATE INDEX audit_by_owner ON audit (owner);
CREATE INDEX audit_by_action ON audit (action);

-- The row before the first one that is left: where the chain starts.
CREATE TABLE audit_anchor (
    one         INTEGER PRIMARY KEY CHECK (one = 1),
    seq         INTEGER NOT NULL,
    hash        BLOB NOT NULL
) STRICT;

INSERT INTO audit_anchor VALUES (1, 0, zeroblob(32));

CREATE TRIGGER audit_is_final BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'an audit row is never changed'); END;

CREATE TRIGGER audit_stays BEFORE DELETE ON audit WHEN old.seq > (SELECT seq FROM audit_anchor)
BEGIN SELECT RAISE(ABORT, 'only audit rows up to the anchor are removed'); END;

CREATE TRIGGER audit_anchor_is_a_row BEFORE UPDATE ON audit_anchor
WHEN NOT EXISTS (SELECT 1 FROM audit WHERE seq = new.seq AND hash = new.hash)
BEGIN SELECT RAISE(ABORT, 'the anchor moves only to a row of the chain'); END;

CREATE TRIGGER audit_anchor_stays BEFORE DELETE ON audit_anchor
BEGIN SELECT RAISE(ABORT, 'the anchor is never removed'); END;

-- One row each time that a sandbox ran, from `running` until it left that state. It outlives its sandbox.
CREATE TABLE usage (
    sandbox     TEXT NOT NULL,
    run         INTEGER NOT NULL,
    owner       TEXT NOT NULL,
    vcpus       INTEGER NOT NULL,
    memory_mb   INTEGER NOT NULL,
    started_ms  INTEGER NOT NULL,
    ended_ms    INTEGER,
    egress_bytes INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (sandbox, run)
) STRICT, WITHOUT ROWID;

CREATE INDEX usage_by_owner ON usage (owner);
CREATE INDEX usage_by_end ON usage (ended_ms) WHERE ended_ms IS NOT NULL;

-- Until now a sandbox ran once.
INSERT INTO usage (sandbox, run, owner, vcpus, memory_mb, started_ms, ended_ms)
SELECT id, 1, owner, vcpus, memory_mb, started_ms, ended_ms FROM sandboxes WHERE started_ms IS NOT NULL;

-- What an owner's requests get where they do not say; null is for the host to say.
CREATE TABLE rules (
    owner       TEXT PRIMARY KEY,
    timeout_sec INTEGER,
    on_timeout  TEXT CHECK (on_timeout IN ('pause', 'destroy')),
    idle_sec    INTEGER,
    paused_sec  INTEGER,
    auto_resume INTEGER CHECK (auto_resume IN (0, 1))
) STRICT, WITHOUT ROWID;

CREATE TABLE tasks (
    id          TEXT PRIMARY KEY,
    owner       TEXT NOT NULL,
    state       TEXT NOT NULL,
    sandbox     TEXT REFERENCES sandboxes (id) ON DELETE SET NULL,
    agent       TEXT NOT NULL,
    spec        TEXT NOT NULL,            -- a JSON object
    created_ms  INTEGER NOT NULL,
    updated_ms  INTEGER NOT NULL,
    ended_ms    INTEGER,
    reason      TEXT
) STRICT;

CREATE INDEX tasks_by_sandbox ON tasks (sandbox) WHERE sandbox IS NOT NULL;
CREATE INDEX tasks_by_state ON tasks (state);
CREATE INDEX tasks_by_creation ON tasks (created_ms, id);

CREATE TABLE steps (
    task        TEXT NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
    number      INTEGER NOT NULL,
    at_ms       INTEGER NOT NULL,
    kind        TEXT NOT NULL,
    data        TEXT NOT NULL,            -- a JSON object
    PRIMARY KEY (task, number)
) STRICT, WITHOUT ROWID;

-- Room that an owner has asked for and not used yet.
CREATE TABLE reservations (
    owner       TEXT NOT NULL,
    id          TEXT NOT NULL,
    vcpus       INTEGER NOT NULL,
    memory_mb   INTEGER NOT NULL,
    created_ms  INTEGER NOT NULL,
    expires_ms  INTEGER NOT NULL,
    PRIMARY KEY (owner, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX reservations_by_end ON reservations (expires_ms);
