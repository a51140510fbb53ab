"""Pure settings loading: TOML text and environment to typed values, every error with its place."""
