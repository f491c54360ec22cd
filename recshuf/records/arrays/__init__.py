"""Arrow arrays and schemas: their memory, sizes and types, and rows of them."""
