"""Writes latent and rotated key part of each token to the paged main cache."""
