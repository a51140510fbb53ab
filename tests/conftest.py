"""What holds for all tests."""

import importlib.util

if importlib.util.find_spec("hypothesis") is not None:  # the SDKs' environment has none
    from hypothesis import settings

    # How long an example takes says something of the machine and what else it does.
    settings.register_profile("untimed", deadline=None)
    settings.load_profile("untimed")
