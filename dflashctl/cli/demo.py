def demo() -> None:
    """soon"""
