def answer():
    return 2 * 127 * (4 * 512 * 1024 * 2) // 128
