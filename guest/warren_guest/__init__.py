"""The guest: the first process of every machine.

It starts what a sandbox runs, moves its files and tells what happened, over HTTP/1.1. `docs/GUEST.md` is its contract.
Standard library only; importing a module of it defines things and does nothing else.

    __main__ → init → routes → requests → server → wire
                    → guest → processes → pumps | spawn | output → reaper
                            → files | uploads | watches | events | identity | logs
                            → accounts | fields | frames | bell → syscalls → errors
"""

VERSION = "0.1.0"
CONTRACT = 1
