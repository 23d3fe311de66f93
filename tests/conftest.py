"""For all tests: they send signals, and what they start must not ignore them because whoever started us does.

And no test fails because the machine is busy: examples may take their time.
"""

import signal

from hypothesis import HealthCheck, settings

settings.register_profile("quick", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("quick")

# `nohup`, and a shell without job control for what is in its background, have these ignored, and that is inherited.
for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number is signal.SIGINT else signal.SIG_DFL)
