"""What an HDF5 file holds: datasets, types, attributes."""
