"""The arithmetic of convolutions, without a tape: direct by im2col, Winograd, grouped."""
