"""Tasks: what a caller wants done by an agent, in a sandbox of its own.

The leaves of this room know nothing of a task's life: what it keeps (`vault`, `artifacts`, `archive`), what it is
given (`secrets`, `repos`, `network`), what it costs (`prices`), and who is told of it (`webhooks`).
"""
