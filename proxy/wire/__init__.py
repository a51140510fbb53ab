"""Wire formats between proxy and control plane as pure functions: signatures, bodies, audit events."""
