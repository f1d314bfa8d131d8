"""The encoder, the heads, and the models that combine them. Every variable has the name
that it has in the original implementation."""
