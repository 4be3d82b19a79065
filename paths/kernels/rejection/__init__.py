"""Verification of draft tokens: greedy, and exact rejection sampling."""
