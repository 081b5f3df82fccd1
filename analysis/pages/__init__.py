"""Tables, token views and figures to HTML and markdown."""
