"""Public keys of OpenPGP as text, which is the one form that all files of apt take."""

import base64
import re

MAX_KEY_BYTES = 1 << 17

_BEGIN, _END = "-----BEGIN PGP PUBLIC KEY BLOCK-----", "-----END PGP PUBLIC KEY BLOCK-----"
_BODY = re.compile(r"(?:[A-Za-z0-9]+: [ -~]*\n)*\n(?P<data>(?:[A-Za-z0-9+/]{1,76}={0,2}\n)+)(?:=[A-Za-z0-9+/]{4}\n)?")
_PUBLIC = (0x98, 0x99, 0x9A, 0xC6)  # the first byte of a public key, in the forms that its length can have
_LINE = 64


def armored(data: bytes) -> str | None:
    """The one block of public keys that `data` is, as text with nothing but the keys in it; None if it is not one."""
    if not data or len(data) > MAX_KEY_BYTES:
        return None
    raw = data if data[0] in _PUBLIC else _plain(data)
    if not raw or raw[0] not in _PUBLIC:
        return None
    text = base64.b64encode(raw).decode()
    lines = [text[at : at + _LINE] for at in range(0, len(text), _LINE)]
    return "\n".join((_BEGIN, "", *lines, f"={base64.b64encode(_checksum(raw)).decode()}", _END, ""))


def _plain(data: bytes) -> bytes | None:
    lines = [line.strip() for line in data.decode("ascii", "replace").strip().splitlines()]
    if not lines or lines[0] != _BEGIN or lines[-1] != _END:
        return None
    match = _BODY.fullmatch("".join(f"{line}\n" for line in lines[1:-1]))
    try:
        return base64.b64decode(match["data"]) if match else None
    except ValueError:
        return None


def _checksum(data: bytes) -> bytes:
    """CRC-24, as OpenPGP has it."""
    crc = 0xB704CE
    for byte in data:
        crc ^= byte << 16
        for _ in range(8):
            crc <<= 1
            if crc & 0x1000000:
                crc ^= 0x1864CFB
    return crc.to_bytes(3)
