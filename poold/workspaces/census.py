"""What a guest sends as its workspace, judged member by member, hashed, and listed. No I/O."""

import hashlib
import os
from dataclasses import replace

from contract.errors import shown
from contract.workspaces import WorkspaceTooLarge
from poold.archives.errors import BadArchive
from poold.archives.members import CheckpointCensus, parts_of
from poold.archives.tar import Kind, Member
from poold.workspaces.listing import Item, Listing

WORKSPACE, REMOVED = b"workspace", [b"removed"]
MAX_REMOVED = 64 << 20  # bytes of the list of what is gone
KINDS = {Kind.FILE: "file", Kind.HARD_LINK: "file", Kind.FOLDER: "folder", Kind.SYMLINK: "symlink", Kind.FIFO: "fifo"}


class WorkspaceCensus(CheckpointCensus):
    """Keeps what is below `workspace/`, but for devices. What else a guest tells is left out."""

    def __init__(self, max_files: int) -> None:
        super().__init__()
        self._max_files = max_files
        self._listing: Listing = {}
        self._removed = bytearray()
        self._hears_removed = False
        self._path: str | None = None  # of the file whose data comes
        self._hash = hashlib.sha256()

    def judge(self, member: Member) -> bool:
        self._end_file()
        self._hears_removed = False
        is_good = super().judge(member)
        parts = parts_of(member)
        if parts == REMOVED:
            # Its bytes are heard, and not kept: whoever is sent a version gets all of it.
            self._hears_removed = True
            if member.stored > MAX_REMOVED:
                raise BadArchive("the checkpoint has a list of what is gone that is too long")
            return True
        if not is_good or parts[0] != WORKSPACE:
            return False
        self._add(member, os.fsdecode(b"/".join(parts[1:])))
        return True

    def hear(self, data: bytes) -> None:
        if self._hears_removed:
            self._removed += data
        elif self._path is not None:
            self._hash.update(data)

    def listing(self) -> Listing:
        """What was kept. Once the stream has ended."""
        self._end_file()
        return self._listing

    def removed(self) -> list[str]:
        """What is gone since what the stream is a difference of."""
        top = WORKSPACE + b"/"
        names = [name for name in bytes(self._removed).split(b"\0") if name.startswith(top)]
        return [os.fsdecode(name.removeprefix(top).rstrip(b"/")) for name in names]

    def _add(self, member: Member, path: str) -> None:
        if path in self._listing:
            raise BadArchive(f"the archive of the workspace has a name twice: {shown(path)}")
        if len(self._listing) >= self._max_files:
            raise WorkspaceTooLarge(
                f"the workspace has more than the {self._max_files} files that this host keeps of one",
                limit=self._max_files,
            )
        link = os.fsdecode(member.link) if member.kind is Kind.SYMLINK else None
        item = Item(KINDS[member.kind], member.mode, member.uid, member.gid, member.size, None, link, None, 0)
        if member.kind is Kind.HARD_LINK:
            item = self._linked(member, path)
        elif member.kind is Kind.FILE:
            self._path, self._hash = path, hashlib.sha256()
        self._listing[path] = item

    def _linked(self, member: Member, path: str) -> Item:
        """Another name for what came before."""
        parts = [part for part in member.link.split(b"/") if part not in (b"", b".")]
        other = os.fsdecode(b"/".join(parts[1:]))
        known = self._listing.get(other)
        if parts[:1] != [WORKSPACE] or known is None or known.kind == "folder":
            raise BadArchive(f"the archive of the workspace has a hard link to what is not in it: {shown(path)}")
        first = other if known.hard is None else known.hard
        return replace(known, hard=first)

    def _end_file(self) -> None:
        if self._path is not None:
            known = self._listing[self._path]
            self._listing[self._path] = replace(known, sha256=self._hash.hexdigest())
            self._path = None
