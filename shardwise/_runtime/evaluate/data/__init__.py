"""The data: sources of examples, and their transfer to the devices."""
