"""The process that talks to the control plane and to the identity provider."""
