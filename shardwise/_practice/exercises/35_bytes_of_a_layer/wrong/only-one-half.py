def answer():
    return 7 * (4 * 512 * 1024 * 2) // 8
