"""The journal: finished steps on disk, from which a run resumes."""
