def answer():
    return 2 * 7 * (16 * 512 * 1024 * 4) // 8
