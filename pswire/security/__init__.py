"""Who calls a server, and whether that can be trusted: tokens with roles, TLS credentials, and their files."""
