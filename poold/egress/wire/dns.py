"""Questions for names, and our answers to them. A guest's resolver is all that ever reads what is written here.

Only questions as resolvers ask them are read: one of them, in a packet that has nothing else but EDNS. What could carry
something past us is refused, not skipped.
"""

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_address

KIND_A = 1
KIND_NS = 2
KIND_CNAME = 5
KIND_SOA = 6
KIND_PTR = 12
KIND_MX = 15
KIND_TXT = 16
KIND_AAAA = 28
KIND_SRV = 33
KIND_SVCB = 64
KIND_HTTPS = 65
KIND_ANY = 255
CLASS_IN = 1

MAX_QUESTION_BYTES = 4096  # with EDNS; a question alone never has more than 271

_HEAD = struct.Struct("!HHHHHH")
_IS_ANSWER = 0x8000
_OPCODE = 0x7800
_IS_TRUNCATED = 0x0200
_IS_RECURSIVE = 0x0100
_CAN_RECURSE = 0x0080
_CODE = 0x000F

_NO_ERROR, _FORM_ERROR, _NO_SUCH_NAME, _NOT_IMPLEMENTED = 0, 1, 3, 4

_MAX_NAME_BYTES = 255
_MAX_LABEL_BYTES = 63
_DOT = ord(".")

_KIND_OPT = 41
_OPT = struct.Struct("!BHHIH")  # an empty name, kind, largest answer, code and version and flags, length
_OUR_LARGEST_BYTES = 1232  # what fits every path; our answers are far smaller
_OPTION = struct.Struct("!HH")
_OPTION_EXTENDED_ERROR = 15
_BLOCKED = 15
_BLOCKED_TEXT = b"not allowed by the network policy of this sandbox"

_TO_THE_QUESTION = 0xC000 | _HEAD.size
_RECORD = struct.Struct("!HHHIH")  # a pointer to the name, kind, class, seconds, length


class BadQuestion(ValueError):
    """Not a question as a resolver asks it."""


@dataclass(frozen=True)
class Question:
    id: int
    is_recursive: bool
    name: str  # small letters, no dot at the end; empty for the root. Not checked further: it may be no host's name
    kind: int
    klass: int
    has_edns: bool
    raw: bytes  # as it was asked, for resolvers that compare the letters' case


def read_question(packet: bytes) -> Question:
    """The one question in `packet`. Raises `BadQuestion` for anything else."""
    if not _HEAD.size <= len(packet) <= MAX_QUESTION_BYTES:
        raise BadQuestion("too short or too long")
    number, flags, questions, answers, authorities, others = _HEAD.unpack_from(packet)
    if flags & (_IS_ANSWER | _OPCODE | _IS_TRUNCATED | _CODE):
        raise BadQuestion("not a question")
    if (questions, answers, authorities) != (1, 0, 0) or others > 1:
        raise BadQuestion("more or less than one question")
    name, at = _read_name(packet, _HEAD.size)
    end = at + 4
    if end > len(packet):
        raise BadQuestion("the question is cut off")
    kind, klass = struct.unpack_from("!HH", packet, at)
    _check_rest(packet[end:], has_edns=others == 1)
    raw = bytes(packet[_HEAD.size : end])
    return Question(number, bool(flags & _IS_RECURSIVE), name, kind, klass, others == 1, raw)


def answer(question: Question, address: str | None, ttl: int) -> bytes:
    """The name has `address`, or none of the kind that was asked for. One of the other family is none of that kind."""
    found = None if address is None else ip_address(address)
    kind = KIND_A if isinstance(found, IPv4Address) else KIND_AAAA
    if found is None or question.klass != CLASS_IN or question.kind not in (kind, KIND_ANY):
        return _reply(question, _NO_ERROR)
    data = found.packed
    return _reply(question, _NO_ERROR, _RECORD.pack(_TO_THE_QUESTION, kind, CLASS_IN, ttl, len(data)) + data)


def refuse(question: Question) -> bytes:
    """There is no such name. Whoever speaks EDNS is told that a policy says so."""
    reason = struct.pack("!H", _BLOCKED) + _BLOCKED_TEXT
    return _reply(question, _NO_SUCH_NAME, option=_OPTION.pack(_OPTION_EXTENDED_ERROR, len(reason)) + reason)


def form_error(packet: bytes) -> bytes | None:
    """The answer to what `read_question` refuses; None if it must have none, because it is an answer or no packet."""
    if len(packet) < _HEAD.size:
        return None
    number, flags, *_ = _HEAD.unpack_from(packet)
    if flags & _IS_ANSWER:
        return None
    code = _NOT_IMPLEMENTED if flags & _OPCODE else _FORM_ERROR
    return _HEAD.pack(number, _IS_ANSWER | (flags & (_OPCODE | _IS_RECURSIVE)) | _CAN_RECURSE | code, 0, 0, 0, 0)


def _read_name(packet: bytes, at: int) -> tuple[str, int]:
    """The name at `at`, and where it ends."""
    labels: list[str] = []
    begin = at
    while True:
        if at >= len(packet) or at - begin >= _MAX_NAME_BYTES:
            raise BadQuestion("the name is cut off or too long")
        size = packet[at]
        at += 1
        if size == 0:
            return ".".join(labels), at
        if size > _MAX_LABEL_BYTES:
            raise BadQuestion("the name points elsewhere")  # or is of a kind that was never used
        label = packet[at : at + size]
        at += size
        if len(label) < size or not all(0x21 <= byte <= 0x7E and byte != _DOT for byte in label):
            raise BadQuestion("the name has what no name has")
        labels.append(label.decode("ascii").lower())


def _check_rest(rest: bytes, *, has_edns: bool) -> None:
    """Behind the question is nothing, or one record of EDNS and nothing behind it."""
    if not has_edns:
        if rest:
            raise BadQuestion("something is behind the question")
        return
    if len(rest) < _OPT.size:
        raise BadQuestion("the record behind the question is cut off")
    root, kind, _, flags, size = _OPT.unpack_from(rest)
    if root or kind != _KIND_OPT or (flags >> 16) & 0xFF or len(rest) != _OPT.size + size:
        raise BadQuestion("the record behind the question is not one of EDNS 0")


def _reply(question: Question, code: int, record: bytes = b"", option: bytes = b"") -> bytes:
    flags = _IS_ANSWER | _CAN_RECURSE | code | (_IS_RECURSIVE if question.is_recursive else 0)
    head = _HEAD.pack(question.id, flags, 1, 1 if record else 0, 0, int(question.has_edns))
    opt = _OPT.pack(0, _KIND_OPT, _OUR_LARGEST_BYTES, 0, len(option)) + option if question.has_edns else b""
    return head + question.raw + record + opt
