def answer():
    return 7 * (16 * 512 * 1024 * 2) // 8
