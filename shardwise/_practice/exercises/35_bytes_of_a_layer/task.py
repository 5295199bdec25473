SIZE = 16 * 512 * 1024 * 2


def inputs(rng, sizes):
    return ()


def expected():
    return 2 * 7 * SIZE // 8


def mistakes(sizes):
    return {
        "whole-batch": 2 * 7 * 4 * SIZE // 8,
        "float32": 2 * 7 * 2 * SIZE // 8,
        "hidden-layer": 2 * 7 * 4 * SIZE // 8 + 0,
        "wrong-axis": 2 * 31 * SIZE // 32,
        "only-one-half": 7 * SIZE // 8,
    }
