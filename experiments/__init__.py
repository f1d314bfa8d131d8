"""The paper's tables and figures again, and recipes, types and exits compared by what
models score: one file each, its command at its head."""
