"""A decoder's pass on CPU cores, compiled for the processor it runs on."""
