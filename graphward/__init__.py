"""Commands that an installation of Graphward provides. The commands start the proxy and the control plane."""
