"""The output: destination and its transaction (work folder, journal, commit), manifest, quarantine."""
