"""Changes of persistent state, queued on the host and applied on the device in one go."""
