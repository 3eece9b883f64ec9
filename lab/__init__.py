"""What only this repository needs: never installed, imported from the repository's root."""
