"""What a program in a sandbox does to our terminal, as far as it matters when we leave or come back. No I/O."""

import re

MODE = re.compile(rb"\x1b\[\?([0-9;]{1,32})([hl])")
LONGEST_MODE = 36
# Modes that are on in a terminal at rest; the others that we look at are off.
USUALLY_ON = {7, 25}  # wrapped lines, a cursor
ALTERNATE_SCREEN = {47, 1047, 1049}
# Cursor keys, mouse and focus reports, bracketed paste.
WATCHED = USUALLY_ON | ALTERNATE_SCREEN | {1, 5, 1000, 1002, 1003, 1004, 1005, 1006, 1015, 2004}

# What a terminal answers as if somebody had typed it.
QUERY = re.compile(
    rb"\x05|\x1bZ"
    rb"|\x1b\[[>=?]?[0-9;]*c"  # what are you?
    rb"|\x1b\[\??[0-9;]*n"  # where is the cursor?
    rb"|\x1b\[\??[0-9;]*\$p"  # which mode?
    rb"|\x1b\[[0-9;]*x"
    rb"|\x1b\[(?:1[1345689]|2[01])(?:;[0-9;]*)?t"  # how big is the window?
    rb"|\x1b\[\?u"
    rb"|\x1b\[>[0-9]*q"
    rb"|\x1b\](?:[0-9]+;)+\?(?:\x07|\x1b\\)"  # which colour?
    rb"|\x1bP[+$]q[^\x1b\x07]*(?:\x07|\x1b\\)"
)
UNFINISHED = re.compile(rb"\x1b(?:\[[0-9;?>=$]{0,32}|\][^\x07\x1b]{0,64}\x1b?|P[^\x07\x1b]{0,256}\x1b?)?\Z")


class Modes:
    """The modes that the terminal was put into."""

    def __init__(self) -> None:
        self._changed: dict[int, bool] = {}
        self._tail = b""

    def saw(self, data: bytes) -> None:
        """Look at output that the terminal is shown, in order."""
        text = self._tail + data
        for match in MODE.finditer(text):
            is_on = match[2] == b"h"
            for number in map(int, filter(None, match[1].split(b";"))):
                if number in WATCHED and is_on != (number in USUALLY_ON):
                    self._changed[number] = is_on
                else:
                    self._changed.pop(number, None)
        self._tail = text[-LONGEST_MODE:]  # a sequence may come in two pieces; seeing one twice does no harm

    def undo(self) -> bytes:
        """What puts the terminal right again: nothing, if nothing is amiss. The screen is changed back last."""
        if not self._changed:
            return b""
        is_alternate = not ALTERNATE_SCREEN.isdisjoint(self._changed)
        numbers = sorted(self._changed, key=lambda number: (number in ALTERNATE_SCREEN, number))
        modes = b"".join(b"\x1b[?%d%b" % (number, b"l" if self._changed[number] else b"h") for number in numbers)
        # Also the keypad, colours, and on a screen that goes anyway the part of it that scrolls.
        return b"\x1b>\x1b[0m" + (b"\x1b[r" if is_alternate else b"") + modes


class WithoutQueries:
    """Old output, shown again: what it asked the terminal was answered long ago, to a program that may be gone."""

    def __init__(self) -> None:
        self._held = b""

    def __call__(self, data: bytes) -> bytes:
        text = QUERY.sub(b"", self._held + data)
        unfinished = UNFINISHED.search(text)
        cut = unfinished.start() if unfinished else len(text)
        self._held = text[cut:]
        return text[:cut]

    def rest(self) -> bytes:
        held, self._held = self._held, b""
        return held
