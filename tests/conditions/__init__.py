"""The tests as other machines would run them: busy, slow, small, or many times."""
