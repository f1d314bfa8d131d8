"""Steps of whole commands, compiled by the TPU's own compiler on a machine without TPU."""
