"""The arithmetic of one step: draft tree, verification, sampling, stops, the record."""
