"""For all tests: they send signals, and what they start must not ignore them because whoever started us does.

No test fails because the machine is busy: examples may take their time. And none is told about a Warren that runs here.
"""

import os
import signal

from hypothesis import HealthCheck, settings

settings.register_profile("quick", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("quick")

for _name in list(os.environ):  # as `make up` says to export them
    if _name.startswith(("POOLD_", "GATEWAY_")) or _name in ("WARREN_URL", "WARREN_API_KEY", "WARREN_CA"):
        del os.environ[_name]

# `nohup`, and a shell without job control for what is in its background, have these ignored, and that is inherited.
for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number is signal.SIGINT else signal.SIG_DFL)
