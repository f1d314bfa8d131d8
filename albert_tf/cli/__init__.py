"""absl flags that scripts share, turned into frozen options; nothing else knows
flags."""
