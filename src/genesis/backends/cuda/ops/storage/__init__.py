"""Making, viewing, copying and casting arrays."""
