"""The gallery of the documentation: a card for every equation of the catalog."""
