"""What changes when a head, a position or a direction is changed."""
