"""Facts of known services that their schemas lack: one module per service."""
