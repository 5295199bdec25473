def inputs(rng, sizes):
    return ()


def expected():
    return 7_000_000


def mistakes(sizes):
    return {
        "numbers-not-bytes": 1_750_000,
        "only-one-half": 3_500_000,
        "to-everybody": 28_000_000,
        "all-devices": 56_000_000,
    }
