"""The step as one compiled program: its state, its memory, its calls."""
