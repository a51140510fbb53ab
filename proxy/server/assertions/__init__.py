"""Client assertions at the token endpoint: what one says, which credential it proves, whether it was used."""
