"""Reading: where examples come from, and how they get to the devices."""
