"""Record batches: keys, row numbers, digests, sizes, provenance, threaded reading."""
