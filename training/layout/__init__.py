"""Synthetic documents, and the training of the layout classifier on them."""
