"""Remembering: finished steps on disk, for a run that goes on where another stopped."""
