"""Who speaks: the name before every line for the person, of shells that were left, and in scripts for completion."""

from functools import partial

from warren_console import output

PROGRAM = "warren"
say = partial(output.say, PROGRAM)
