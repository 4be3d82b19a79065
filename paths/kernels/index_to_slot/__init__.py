"""Request-local positions to cache slots."""
