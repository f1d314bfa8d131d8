"""The paper's tables and figures again: one file each, its command at its head."""
