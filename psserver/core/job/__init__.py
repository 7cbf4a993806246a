"""The job: which one the shard serves, the barrier of its workers, and what stops or changes it from outside."""
