"""What keeps a proxy from working, looked for from where it stands; changes nothing, may run beside it."""
