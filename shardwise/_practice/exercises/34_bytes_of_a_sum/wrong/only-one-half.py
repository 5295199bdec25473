def answer():
    return 7 * 4_000_000 // 8
