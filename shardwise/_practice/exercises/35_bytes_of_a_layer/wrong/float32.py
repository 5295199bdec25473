def answer():
    return 2 * 7 * (4 * 512 * 1024 * 4) // 8
