"""absl flags that scripts share, converted to frozen options. Nothing else uses
flags."""
