def answer():
    return 2 * 7 * 1_000_000 // 8
