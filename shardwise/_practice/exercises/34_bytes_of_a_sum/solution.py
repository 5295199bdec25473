def answer():
    size = 1_000_000 * 4
    return 2 * 7 * size // 8
