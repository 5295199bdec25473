"""`check`, and fixes: edits of the source that were verified before they are shown."""

from .run import check as check
