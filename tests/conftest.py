"""For all tests: they send signals, and what they start must not ignore them because whoever started us does."""

import signal

# `nohup`, and a shell without job control for what is in its background, have these ignored, and that is inherited.
for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number is signal.SIGINT else signal.SIG_DFL)
