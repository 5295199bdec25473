"""What every other package stands on: errors, progress, dtypes, files that survive."""
