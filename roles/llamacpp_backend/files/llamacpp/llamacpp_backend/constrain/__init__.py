"""Constrained output: JSON schema -> GBNF, bounded and tried before it reaches the serving process."""
