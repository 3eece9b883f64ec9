"""APEBench (Koehler et al., NeurIPS 2024): its scenarios in our units, its protocol and its metric."""
