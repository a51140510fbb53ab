"""The system of record of the control plane."""
