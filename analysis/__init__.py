"""What the measurements say: tables, figures, attribution, replay."""
