"""HDF5 rows to tables and back."""
