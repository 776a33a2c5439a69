"""Moving files between two ends, verified and published whole."""
