"""Computing vectors of many texts, and measuring how much each layer changes its
input."""
