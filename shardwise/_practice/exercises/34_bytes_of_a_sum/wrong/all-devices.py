def answer():
    return 8 * 2 * 7 * 4_000_000 // 8
