"""Computing: the step as one compiled program, its state, its memory, its rounds."""
