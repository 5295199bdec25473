"""Draw the figures of the page."""
