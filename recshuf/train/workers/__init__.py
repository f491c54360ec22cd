"""What worker processes send to the process that trains."""
