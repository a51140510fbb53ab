"""Find faults that prevent a control plane from working, without changing or delaying the control plane."""
