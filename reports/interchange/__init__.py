"""Numbers of other tools in, our numbers out in their formats."""
