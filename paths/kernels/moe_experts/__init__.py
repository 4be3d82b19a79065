"""The routed experts of a mixture-of-experts layer."""
