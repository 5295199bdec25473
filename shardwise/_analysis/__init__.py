"""The questions asked of a program: `check`, `prove`, `explain`, `inspect`, and fixes."""
