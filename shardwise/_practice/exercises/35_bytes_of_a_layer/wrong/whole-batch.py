def answer():
    return 2 * 7 * (64 * 512 * 1024 * 2) // 8
