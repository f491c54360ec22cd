"""Outputs in object stores: uploads that stay open until the commit, and a journal of objects beside them."""
