"""Options to one call of a lower room, and the lines printed; no arithmetic."""
