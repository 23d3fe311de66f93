"""What a command shows to a person and takes from one: for `warren` and for `pooldctl`. It imports nothing of either.

A package of its own, and the standard library alone: whoever wants it does not load the client.
"""
