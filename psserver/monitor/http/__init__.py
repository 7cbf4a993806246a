"""The HTTP side of a monitor: a bounded server, its paths, and who may look."""
