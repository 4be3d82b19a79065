"""The k best scores of every row, exact and deterministic."""
