"""Raw text in, a sentence a line out: readers, sentence splitting, held-out
documents."""
