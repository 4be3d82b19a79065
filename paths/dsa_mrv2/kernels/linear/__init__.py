"""Linear projection that is quick for few rows."""
