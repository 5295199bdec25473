"""The programs of the conformance table, by subject."""

X8, X4, X3, X2, X1 = ({"x": n} for n in (8, 4, 3, 2, 1))
XY = {"x": 4, "y": 2}
XY_ODD = {"x": 2, "y": 3}
XY_ONE = {"x": 1, "y": 4}
XYZ = {"x": 2, "y": 2, "z": 2}
XYZW = {"x": 2, "y": 1, "z": 2, "w": 2}
