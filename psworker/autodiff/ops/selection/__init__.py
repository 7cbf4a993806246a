"""Selection of elements: by index, in order, by segment."""
