"""What keeps a control plane from working, looked for beside it: nothing is changed, nobody kept waiting."""
