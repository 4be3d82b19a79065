"""Absorbed MLA attention (MQA) over the selected keys."""
