"""A profile of training steps: where their time goes, by phase and by op, as a table and as a trace."""
