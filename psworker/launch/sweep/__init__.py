"""`psworker sweep`: a program run once for each combination of values of its options, each run a job of its own."""
