import signal
import sys
from pathlib import Path

# `python -m` puts the current directory first, where a kernel.py would stand before our package of that name. Kernels
# that are named as module:function are looked for there later.
if (cwd := str(Path.cwd())) in sys.path[:1] and not Path("fuzz", "__main__.py").is_file():
    del sys.path[0]

# Ctrl-C during the imports ends the process, without a traceback.
if heeded := signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from fuzz.cli import main

if heeded:
    signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
