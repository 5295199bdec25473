def answer():
    return 2 * 7 * (4 * 512 * 4096 * 2) // 8
