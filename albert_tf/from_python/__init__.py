"""Fine-tuning from Python on rows in memory; stands on all other folders but `cli`."""
