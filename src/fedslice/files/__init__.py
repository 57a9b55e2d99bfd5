"""Safe reading and writing: what is damaged is named, what is written is whole."""
