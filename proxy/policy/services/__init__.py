"""Facts about known services that are not in the services' schemas, in one module per service."""
