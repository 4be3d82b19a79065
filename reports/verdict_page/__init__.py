"""report.html of a comparison: verdict first, then whether to trust it, then what it stands on."""
