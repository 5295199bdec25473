"""`check` with fixes: edits of the source that are verified before they are shown."""

from .run import check as check
