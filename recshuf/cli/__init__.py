"""The command line: options, messages, exit codes; the only code that prints."""
