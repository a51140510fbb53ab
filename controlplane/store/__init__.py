"""The store of the control plane, its system of record."""
