"""Faster ways to the same numbers: compiled element-wise parts, packing without
padding, recomputing; `plain` alone is ALBERT."""
