"""Tables, figures, animations and the HTML report."""
