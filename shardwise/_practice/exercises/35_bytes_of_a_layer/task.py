SIZE = 4 * 512 * 1024 * 2


def inputs(rng, sizes):
    return ()


def expected():
    return 2 * 7 * SIZE // 8


def mistakes(sizes):
    return {
        "whole-batch": 2 * 7 * 16 * SIZE // 8,
        "float32": 2 * 7 * 2 * SIZE // 8,
        "hidden-layer": 2 * 7 * 4 * SIZE // 8,
        "wrong-axis": 2 * 127 * SIZE // 128,
        "only-one-half": 7 * SIZE // 8,
    }
