def answer():
    return 2 * 31 * (16 * 512 * 1024 * 2) // 32
