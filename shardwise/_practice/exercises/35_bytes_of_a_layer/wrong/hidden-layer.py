def answer():
    return 2 * 7 * (16 * 512 * 4096 * 2) // 8
