"""Inputs of the drafts behind a V2 step, made on the device from counts that the host has not read."""
