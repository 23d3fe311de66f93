-- Hosts that were lost and whose ledger this one took in. What is `whole` is never taken in again.

CREATE TABLE takeovers (
    host        TEXT NOT NULL,
    epoch       INTEGER NOT NULL,         -- of the lost host's lease: which of its ledgers it was
    begun_ms    INTEGER NOT NULL,
    whole_ms    INTEGER,                  -- when all of it was here
    audit_seq   INTEGER NOT NULL,         -- where the lost ledger's audit chain ended, and its hash there
    audit_hash  BLOB NOT NULL,
    sandboxes   INTEGER NOT NULL DEFAULT 0,
    tasks       INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (host, epoch)
) STRICT, WITHOUT ROWID;
