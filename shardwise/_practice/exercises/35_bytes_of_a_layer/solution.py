def answer():
    tokens = 64 // 16 * 512  # of one device
    size = tokens * 1024 * 2  # bfloat16
    return 2 * 7 * size // 8
