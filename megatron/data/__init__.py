"""Token files, windows over them, mixtures, and the loader that a run resumes."""
