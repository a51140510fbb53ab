"""Agent process: the part of a proxy that talks to the control plane and to the identity provider."""
