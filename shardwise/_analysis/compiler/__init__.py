"""Compile a program for virtual devices with XLA, and read its collectives off the HLO."""
