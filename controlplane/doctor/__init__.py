"""Find faults that prevent a control plane from working, without changes to it and without delays for it."""
