"""The output: destination, work folder, journal, commit, manifest, quarantine."""
