"""Attention output from the latent space to the heads' value space."""
