"""Hypothesis without time limits: the same examples each time in `make test`, fresh ones in `make nightly`."""

from hypothesis import HealthCheck, settings

settings.register_profile("qpack", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("nightly", settings.get_profile("qpack"), derandomize=False, max_examples=1000)
settings.load_profile("qpack")
