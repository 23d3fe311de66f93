"""The process that a guest speaks to when it speaks to the world.

It believes nothing that it hears from the guest, and it is never ended by it. It imports nothing of poold but the
decisions beside it and what reads the wire.

    process → door → control | asking | tunnels → web → visits → gate → dial → ends | rows | refusals | limits
    heads | chunks | firsts | fakes: no I/O

- A *visit* is one connection from the guest; an *end* is one side of it, the guest's or the world's.
- A *flow* is what a visit has with one target: it has a row in the end, and is cut when the policy says so.
"""
