"""Roll-outs of exported surrogates: files that are written beside them, and need no factformer."""
