"""Connections to servers: discovery by files and names, channels, and which shard is where."""
