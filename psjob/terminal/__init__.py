"""The terminal: commands and their options, tables and bars that fit it, lines of logs."""
