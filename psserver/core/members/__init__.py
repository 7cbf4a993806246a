"""Members of a job: leases and incarnations, deduplication, and job-wide invariants."""
