"""What a sandbox may reach, and the programs that see to it.

Each machine has a proxy: a process of its own, without rights, whose listening sockets are inside the machine's slot
and whose other sockets are outside. It is the only thing that a guest can reach. What it is told is a `policy`; what
it tells are rows, one for each connection.

- `policy`, `addresses`, `names`: decisions. No I/O.
- `wire`: what guests say, read without believing it: questions for names, first words of TLS, packets.
- `proxy`: the process. It imports nothing of poold but these.
- `registries`: where the host's own clients get their packages from.
"""
