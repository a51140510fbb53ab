"""Commands that an installation of Graphward provides. They start the proxy and the control plane."""
