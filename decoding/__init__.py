"""Draft trees, exact verification, gates and drafters: the one decode loop."""
