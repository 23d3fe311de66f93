-- What gateways have hosts remember, for they remember nothing themselves; and what lists of an owner need.

ALTER TABLE sandboxes ADD COLUMN public_ports TEXT NOT NULL DEFAULT '[]';  -- a JSON list of port numbers

CREATE INDEX sandboxes_by_owner ON sandboxes (owner, created_ms, id);
-- Most of what an owner ever had is stopped, and most lists leave that out.
CREATE INDEX sandboxes_left_by_owner ON sandboxes (owner, created_ms, id) WHERE state <> 'stopped';

-- Nothing was ever written to it.
DROP TABLE reservations;

-- The books of owners: what all sandboxes of one may take, on whatever host, is counted in the one open book.
-- An owner without a row has no book on this host. A closed one keeps its rows: its next reader may be the first to get them.
CREATE TABLE books (
    owner       TEXT PRIMARY KEY,
    state       TEXT NOT NULL CHECK (state IN ('open', 'closed')),
    at_ms       INTEGER NOT NULL          -- since when it is in this state
) STRICT, WITHOUT ROWID;

CREATE INDEX books_by_close ON books (at_ms) WHERE state = 'closed';

CREATE TABLE reservations (
    owner       TEXT NOT NULL,
    id          TEXT NOT NULL,            -- of the sandbox
    vcpus       INTEGER NOT NULL,
    memory_mb   INTEGER NOT NULL,
    disk_mb     INTEGER NOT NULL,
    created_ms  INTEGER NOT NULL,         -- by this host's clock, also if it came here with its book
    PRIMARY KEY (owner, id)
) STRICT, WITHOUT ROWID;

-- Which id was given for an idempotency key. Kept for a day.
CREATE TABLE repeats (
    owner       TEXT NOT NULL,
    key         TEXT NOT NULL,            -- a hash of the key
    asked       TEXT NOT NULL,            -- a hash of the request's body
    id          TEXT NOT NULL,
    at_ms       INTEGER NOT NULL,
    PRIMARY KEY (owner, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX repeats_by_id ON repeats (owner, id);
CREATE INDEX repeats_by_time ON repeats (at_ms);

-- What was answered to a create with an idempotency key, also if it failed. Kept for a day.
CREATE TABLE replies (
    sandbox     TEXT PRIMARY KEY,
    asked       TEXT NOT NULL,            -- a hash of the request's body
    status      INTEGER NOT NULL,
    body        BLOB NOT NULL,
    at_ms       INTEGER NOT NULL
) STRICT;

CREATE INDEX replies_by_time ON replies (at_ms);
