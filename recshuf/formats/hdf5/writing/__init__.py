"""Record batches to HDF5 shards."""
