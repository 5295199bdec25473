"""What XLA makes of a program: compiled for virtual devices, its collectives read off the HLO."""
