"""Models of the papers: small files of pure JAX, each to be checked against its paper."""
