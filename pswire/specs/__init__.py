"""What a job is configured with: consistency, schedules, row initializers and encodings."""
