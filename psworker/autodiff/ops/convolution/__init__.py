"""Convolution and pooling of images: the ops, the two convolution algorithms, and the geometry of windows."""
