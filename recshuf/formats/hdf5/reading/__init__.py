"""HDF5 rows to record batches."""
