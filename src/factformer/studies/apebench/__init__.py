"""APEBench (Koehler et al., NeurIPS 2024): its scenarios in our parameters, its protocol and its metric."""
