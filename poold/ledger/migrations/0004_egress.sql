-- What each sandbox may reach, and which rows of which proxy are written down.

ALTER TABLE sandboxes ADD COLUMN network TEXT NOT NULL DEFAULT '{}';  -- a policy as JSON; an empty one denies everything
ALTER TABLE sandboxes ADD COLUMN within TEXT NOT NULL DEFAULT '[]';   -- those that it never gets out of: of its key and its image

-- A proxy tells its rows again to a daemon that starts anew: each is kept once.
CREATE TABLE proxies (
    proxy       TEXT PRIMARY KEY,         -- its process and when that began
    number      INTEGER NOT NULL,         -- of the last row that is written down
    at_ms       INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX proxies_by_time ON proxies (at_ms);
