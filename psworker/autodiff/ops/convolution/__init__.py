"""Convolution and pooling of images: the ops, their algorithms, and the geometry of windows."""
