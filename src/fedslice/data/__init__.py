"""Clients and their data: populations, slices, sampling, halves, files and frames."""
