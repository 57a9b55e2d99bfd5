"""Simulated training: runs, checkpoints, progress."""
