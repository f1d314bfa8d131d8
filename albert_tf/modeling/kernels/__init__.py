"""Faster ways to compute the same numbers: compiled element-wise parts, packing without
padding, recomputation. `plain` alone is enough for ALBERT."""
