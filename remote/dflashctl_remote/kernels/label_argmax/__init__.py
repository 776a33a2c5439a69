"""Labels by arg-max through a frozen head, in chunks of rows: see README.md."""
