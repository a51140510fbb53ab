"""Hypothesis and pytest settings that apply to all tests."""

import importlib.util

if importlib.util.find_spec("hypothesis") is not None:  # the SDKs' environment does not have it
    from hypothesis import settings

    # No deadline: the time of an example depends on the machine and on its other load.
    settings.register_profile("untimed", deadline=None)
    settings.load_profile("untimed")
