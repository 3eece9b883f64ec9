"""Numerical methods without physics: each module stands alone and works on any number of axes."""
