"""Feed-forward blocks: a whole mixture of experts with its shared expert, and the dense MLP."""
