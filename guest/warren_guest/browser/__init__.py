"""The machine's browser: a page opened, looked at and acted on, for an agent that cannot see.

Chromium, driven over two pipes with its DevTools protocol. What it says comes from pages, which may be anybody's: every
message is bounded and checked, and every wait has an end. `pipe` speaks, `launch` starts, `page` knows one page,
`browser` owns the one browser of the machine.
"""
