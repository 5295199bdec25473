"""The same as watch mode, on a page: only for this machine, and only for who has the address."""

from .server import serve as serve
