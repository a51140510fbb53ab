"""Commands that an installation of Graphward provides.

The installed commands start the proxy and the control plane.
"""
