"""Privacy: heat, rows, sums and noise.

What each mechanism protects against, and what it does not, is in docs/privacy.md.
"""
