"""Token ids from logits: temperature, top-k, top-p and a seeded Gumbel-max draw."""
