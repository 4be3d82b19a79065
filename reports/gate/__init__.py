"""From findings to what a CI job reads: exit code, verdict.json, junit.xml, summary.md."""
