"""What may be in the archive of a workspace: nothing that leads out of the folder in which it is unpacked. No I/O."""

from contract.errors import shown
from poold.archives.errors import BadArchive
from poold.archives.tar import Kind, Member

CHECKPOINT_FOLDERS = (b"workspace", b"home")
LAYER_FOLDERS = (b"root", *CHECKPOINT_FOLDERS)
MAX_NAME = 4096  # a path has no more
MAX_SYMLINKS = 1 << 20  # each is remembered, as a number
MAX_SUM = 1 << 53  # beyond it, programs that read JSON lose digits


class Census:
    """Judges members one after the other, and counts them."""

    def __init__(self) -> None:
        self._symlinks: set[int] = set()
        self._sum = 0
        self.files = 0  # all but folders
        self.outward_links = 0  # symlinks that lead out; they stay what they are
        self.left_out = 0  # devices: nobody means to unpack one

    @property
    def unpacked_bytes(self) -> int:
        return min(self._sum, MAX_SUM)

    def judge(self, member: Member) -> bool:
        """Whether it is kept. Raises `BadArchive` for what would be written elsewhere than where it says."""
        for name in member.names:
            parts = _parts(name, "a name")
            self._check_way(parts)
        if member.kind is Kind.DEVICE:
            self.left_out += 1
            return False
        self._check_kind(member)
        self.files += member.kind is not Kind.FOLDER
        self._sum += member.size
        return True

    def hear(self, data: bytes) -> None:
        """The data of the member that was judged last, piece by piece."""

    def _check_kind(self, member: Member) -> None:
        parts = _parts(member.name, "a name")
        if member.kind is Kind.HARD_LINK:
            led_to = _parts(member.link, "a hard link to")
            self._check_way(led_to)
            if _ways(led_to)[-1] in self._symlinks:
                self._remember(parts)
        elif member.kind is Kind.SYMLINK:
            _check_text(member.link, "a symlink to")
            self.outward_links += _leads_out(parts, member.link)
            self._remember(parts)
        elif member.kind is Kind.FILE and member.name.endswith(b"/"):
            raise BadArchive(f"the archive of the workspace has a file with the name of a folder: {shown(member.name)}")

    def _check_way(self, parts: list[bytes]) -> None:
        """What stands below a symlink would be written wherever that leads. No folder has such a thing."""
        if not self._symlinks.isdisjoint(_ways(parts)[:-1]):
            name = shown(b"/".join(parts))
            raise BadArchive(f"the archive of the workspace has a name that leads through a symlink: {name}")

    def _remember(self, parts: list[bytes]) -> None:
        if len(self._symlinks) >= MAX_SYMLINKS:
            raise BadArchive(f"the archive of the workspace has more than {MAX_SYMLINKS} symlinks")
        self._symlinks.add(_ways(parts)[-1])


class CheckpointCensus(Census):
    """Of a checkpoint: all is in one of two folders, but for the list of what is gone."""

    folders: tuple[bytes, ...] = CHECKPOINT_FOLDERS
    lists: tuple[bytes, ...] = (b"removed",)

    def judge(self, member: Member) -> bool:
        for name in member.names:
            parts = _parts(name, "a name")
            is_list = len(parts) == 1 and parts[0] in self.lists and member.kind is Kind.FILE
            if not is_list and (len(parts) < 2 or parts[0] not in self.folders):
                raise BadArchive(f"the archive has something in none of its folders: {shown(name)}")
        return super().judge(member)


class LayerCensus(CheckpointCensus):
    """Of all that a machine has besides its image: below its root, or in the folders of a developer's guest."""

    folders = LAYER_FOLDERS
    lists = (b"removed", b"env")


def parts_of(member: Member) -> list[bytes]:
    """The steps of a member's name, once it was judged."""
    return _parts(member.name, "a name")


def _ways(parts: list[bytes]) -> list[int]:
    """A number for the folder itself, and for each step of the way: names may be long, and are many."""
    ways = [0]
    for part in parts:
        ways.append(hash((ways[-1], part)))
    return ways


def _parts(name: bytes, what: str) -> list[bytes]:
    """The steps of a name that leads nowhere else."""
    _check_text(name, what)
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if name.startswith(b"/") or b".." in parts:
        raise BadArchive(f"the archive of the workspace has {what} that leads out of it: {shown(name)}")
    return parts


def _check_text(text: bytes, what: str) -> None:
    if not text or len(text) > MAX_NAME or b"\0" in text:
        raise BadArchive(f"the archive of the workspace has {what} that is none: {shown(text)}")


def _leads_out(parts: list[bytes], target: bytes) -> bool:
    """Whether a symlink leads out, as far as its own words go."""
    depth = len(parts) - 1
    for step in target.split(b"/"):
        depth += {b"": 0, b".": 0, b"..": -1}.get(step, 1)
        if depth < 0:
            return True
    return target.startswith(b"/")
