"""Facts of known services that the schemas of these services lack, in one module per service."""
