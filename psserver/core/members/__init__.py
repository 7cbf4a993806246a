"""Members of a job: leases and incarnations, chief election, training progress, deduplication, job-wide invariants."""
