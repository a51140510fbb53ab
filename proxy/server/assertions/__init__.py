"""Client assertions at the token endpoint: parse, find the credentials, and detect replays."""
