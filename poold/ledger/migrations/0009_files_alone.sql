-- Hibernation of files alone: which kind a sandbox goes to the store as by itself.

ALTER TABLE sandboxes ADD COLUMN hibernate_kind TEXT NOT NULL DEFAULT 'machine';
ALTER TABLE rules ADD COLUMN hibernate_kind TEXT;
