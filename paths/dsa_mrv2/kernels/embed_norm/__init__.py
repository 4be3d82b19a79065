"""Embedding lookup with the first layer's input norm."""
