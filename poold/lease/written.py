"""A lease as it is in the store: what it says, and every change that anybody makes to one. No I/O.

An *epoch* is a number that no two holders of a host's lease have had. A *line* is a ledger's life: the epochs from its
`root`, in which it began empty, to the last one in which it was written. A host that was away and finds its lease as
it left it goes on with its ledger in a new epoch of the same line; one whose lease was taken begins a new line.

Who takes a lease ends the holding and leaves a `Taken` in it: the line that was lost, and who carries it on. It goes
when that is done. A host that comes back need not wait for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import orjson

from contract.errors import BadField, CallerError
from contract.fields import Fields
from contract.hosts import NAME, Host

VERSION = 1
MAX_BYTES = 1 << 20
MAX_EPOCH = 1 << 53  # whole numbers that every JSON reader has
MAX_TAKEN = 1000
MIN_HOLD_MS, MAX_HOLD_MS = 100, 3_600_000
RANDOM = r"[0-9a-f]{32}"
BOOT = r"[0-9a-f-]{0,36}"
HEIR = f"(?:{NAME.pattern})?"


class State(StrEnum):
    """What a lease is, for people and for `terms`."""

    HELD = "held"
    LEFT = "left"  # its holder runs nothing any more and said so: it may be taken at once
    TAKING = "taking"  # what was lost with its holder is being carried on
    EMPTY = "empty"  # nobody holds it, and nothing is left to carry on


@dataclass(frozen=True)
class Taken:
    """A lost line of the lease's host, and the host that carries it on, in an epoch of its own."""

    root: int
    last: int
    by: str
    by_epoch: int


@dataclass(frozen=True)
class Lease:
    """The lease of one host. `root` is 0 when nobody holds it and its last line was taken."""

    host: str
    epoch: int
    root: int
    holder: str  # a number drawn at random when its state folder was made: two hosts of one name are two
    boot: str  # the boot of the holder's kernel
    hold_ms: int  # how long the holder goes on without a renewal
    beat: int  # grows with everything that the holder writes: no two contents are alike
    record: Host
    has_left: bool = False
    heir: str = ""  # who is to carry on what a holder that has left had, if it can
    taken: tuple[Taken, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)  # of a later version: kept

    @property
    def state(self) -> State:
        if self.root:
            return State.LEFT if self.has_left else State.HELD
        return State.TAKING if self.taken else State.EMPTY

    def has_in_line(self, epoch: int) -> bool:
        """Whether the ledger that this lease's holder writes was written in `epoch`."""
        return 0 < self.root <= epoch <= self.epoch

    # What the holder does.

    def renewed(self, record: Host) -> "Lease":
        return replace(self, beat=self.beat + 1, record=record)

    def begun(self, holder: str, boot: str, hold_ms: int, *, goes_on: bool, keeps_line: bool) -> "Lease":
        """Held by `holder` from now on: in the same epoch if it `goes_on`, else in the next one."""
        epoch = self.epoch if goes_on else self.epoch + 1
        root = self.root if keeps_line else epoch
        held = replace(self, epoch=epoch, root=root, holder=holder, boot=boot, hold_ms=hold_ms)
        return replace(held, beat=self.beat + 1, has_left=False, heir="")

    def left(self, heir: str = "") -> "Lease":
        return replace(self, has_left=True, heir=heir, beat=self.beat + 1)

    # What others do.

    def taken_by(self, host: str, epoch: int) -> "Lease":
        """Its holding is over, and `host` carries its line on."""
        lost = Taken(self.root, self.epoch, host, epoch)
        return replace(self, epoch=self.epoch + 1, root=0, has_left=False, heir="", taken=(*self.taken, lost))

    def passed_on(self, taken: Taken, host: str, epoch: int) -> "Lease":
        """`taken` is carried on by another one."""
        now = replace(taken, by=host, by_epoch=epoch)
        return replace(self, taken=tuple(now if each == taken else each for each in self.taken))

    def settled(self, taken: Taken) -> "Lease":
        """`taken` was carried on."""
        return replace(self, taken=tuple(each for each in self.taken if each != taken))

    # As bytes.

    def view(self) -> dict[str, Any]:
        told = {name: value for name, value in vars(self).items() if name not in ("more", "record", "taken")}
        return {**told, "record": self.record.view(), "taken": [vars(each) for each in self.taken]}

    def encode(self) -> bytes:
        return orjson.dumps({**self.more, "version": VERSION, "state": self.state, **self.view()})

    @classmethod
    def decode(cls, data: bytes, host: str) -> "Lease":
        """The lease of `host` in `data`, which may be anything. Raises `BadLease`."""
        try:
            return _decode(data, host)
        except CallerError as error:
            raise BadLease(f"the lease of host {host!r} makes no sense: {error.message}") from None


class BadLease(Exception):
    """What is in the store as a lease is none. It is left as it is, for a person to look at."""


def first(host: str, holder: str, boot: str, hold_ms: int, record: Host, *, epoch: int = 1, root: int = 0) -> Lease:
    """The lease of a host that has none."""
    return Lease(host, epoch, root or epoch, holder, boot, hold_ms, 1, record)


KNOWN = frozenset({*Lease.__dataclass_fields__, "version", "state"} - {"more"})


def _decode(data: bytes, host: str) -> Lease:
    if len(data) > MAX_BYTES:
        raise CallerError(f"it has {len(data)} bytes, and may have {MAX_BYTES}")
    fields = Fields.parse(data)
    version = fields.integer("version", low=1, high=MAX_EPOCH)
    if version != VERSION:
        raise CallerError(f"it is of version {version}, and this poold knows version {VERSION}: update this host")
    name = fields.text("host", max_chars=63, pattern=NAME.pattern)
    if name != host:
        raise BadField("host", name, f"must be {host}")
    epoch = fields.integer("epoch", low=1, high=MAX_EPOCH)
    lease = Lease(
        host=name,
        epoch=epoch,
        root=fields.integer("root", low=0, high=epoch),
        holder=fields.text("holder", max_chars=32, pattern=RANDOM),
        boot=fields.text("boot", max_chars=36, pattern=BOOT, default=""),
        hold_ms=fields.integer("hold_ms", low=MIN_HOLD_MS, high=MAX_HOLD_MS),
        beat=fields.integer("beat", low=0, high=MAX_EPOCH),
        record=_record(fields, name),
        has_left=fields.flag("has_left", default=False),
        heir=fields.text("heir", max_chars=63, pattern=HEIR, default=""),
        taken=tuple(_taken(each, epoch) for each in fields.inner_list("taken", max_count=MAX_TAKEN)),
        more={key: value for key, value in orjson.loads(data).items() if key not in KNOWN},
    )
    if fields.text("state", max_chars=16) != lease.state:
        raise BadField("state", str(lease.state), "does not fit what else it says")
    return lease


def _record(fields: Fields, name: str) -> Host:
    record = fields.raw("record")
    if not isinstance(record, dict):
        raise BadField("record", record, "must be an object")
    found = Host.decode(orjson.dumps(record))
    if found.name != name:
        raise BadField("record.name", found.name, f"must be {name}")
    return found


def _taken(fields: Fields, epoch: int) -> Taken:
    last = fields.integer("last", low=1, high=epoch)
    return Taken(
        root=fields.integer("root", low=1, high=last),
        last=last,
        by=fields.text("by", max_chars=63, pattern=NAME.pattern),
        by_epoch=fields.integer("by_epoch", low=1, high=MAX_EPOCH),
    )
