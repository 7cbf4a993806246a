"""Authentication of callers: tokens with roles, TLS credentials, and their files."""
