"""Readers of data sets in the formats in which people have them."""
