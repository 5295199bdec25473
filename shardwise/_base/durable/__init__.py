"""Support for long runs: checksums, a lock, atomic writes, signals. Nothing here imports JAX."""

from .files import Identity as Identity
from .files import unused as unused
from .files import write_as as write_as
from .files import write_file as write_file
from .files import write_whole as write_whole
from .lock import Lock as Lock
from .lock import holder as holder
from .places import hindrance as hindrance
from .signals import COMPILERS as COMPILERS
from .signals import Signals as Signals
from .signals import listen as listen
from .signals import stand_in as stand_in
from .signals import wait_for_compiler as wait_for_compiler
from .sums import broken_seal as broken_seal
from .sums import checksum as checksum
from .sums import seal as seal
