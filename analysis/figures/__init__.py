"""Tables to Plotly figures; computes nothing."""
