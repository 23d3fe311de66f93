"""Agents: one file for each CLI, which knows its command line, its words, and how to answer and interrupt it.

    claude | codex | cursor | mock → adapter → acts → rules | usage | values

An adapter is pure: lines that the agent printed go in, acts come out, and `run` does them. It knows nothing of HTTP,
processes or files. What an agent prints is not to be trusted: every value is checked where it is read (`values`).
`mock_program` is a program of its own, which imports nothing of ours but `mock_effects`, its other half.
"""
