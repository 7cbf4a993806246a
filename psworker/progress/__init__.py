"""The progress of a job for people: its status over time, as a line of text, shown on a terminal."""
