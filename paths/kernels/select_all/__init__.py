"""Every visible key selected, for steps in which no row sees more than the selection holds."""
