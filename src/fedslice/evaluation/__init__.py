"""How good a model is: pooled, by client, after adapting, by cluster."""
