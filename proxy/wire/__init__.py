"""Pure wire formats between proxy and control plane: signatures, bodies, audit events."""
