"""Client assertions at the token endpoint: parsing, credentials that they prove, and replay protection."""
