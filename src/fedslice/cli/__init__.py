"""The command line ``fedslice``."""
