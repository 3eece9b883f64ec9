"""Single questions about surrogates and data, each a command that writes one file of results."""
