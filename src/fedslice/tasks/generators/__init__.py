"""Generators of data with the published statistics: nothing to download."""
