"""From a layer's second projection to the attention query and the indexer query."""
