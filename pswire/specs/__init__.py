"""Specs: the configuration of a job. Consistency policies, schedules, initializers and encodings."""
