"""Index scores and the deterministic top-k over them."""
