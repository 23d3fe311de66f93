"""The guest: the first process of every machine.

It starts what a sandbox runs, moves its files and tells what happened, over HTTP/1.1. `docs/GUEST.md` is its contract.
Standard library only; importing a module of it defines things and does nothing else.

    __main__ → routes → file_routes | archive_routes | checkpoint_routes | run_routes | browser_routes | git.routes
             → requests | init → guest | uploads → git.service | runs → run → agents | browser
             → children → checkpoints → processes | files | trees
             → identity | paths | pumps | spawn → accounts | events | fields | output | server | watches
             → bell | frames | logs | reaper | sessions | syscalls | wire → errors

Imports go to the right only. `processes`, `files`, `uploads`, `watches` and `runs` know nothing of HTTP, so that
another protocol can be a second face over them. What belongs to `run` alone is in `run_*` beside it.
"""

VERSION = "0.1.0"
CONTRACT = 1
