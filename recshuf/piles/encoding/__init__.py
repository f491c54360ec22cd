"""Records as the bytes of slices, and back."""
