"""Agent process: the part of a proxy that sends requests to the control plane and to token issuers."""
