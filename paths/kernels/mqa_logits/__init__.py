"""Index scores: sum over heads of W × ReLU(q · key), over keys in one piece or in a paged cache."""
